// A few pixels by all outputs at a time: each vector of inputs meets the weights of every output.
#include "backend/cpu/conv_forms/narrow_nhwc.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv_forms/narrow_nhwc.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_NARROW_TYPES
#define TRIREME_NARROW_TYPES
namespace trireme::cpu {

/// Neighbouring outputs of one line.
struct NarrowLine {
  const float* x;      // line of the first valid kernel row, pixel 0
  int64_t w, c;        // pixels of a line and floats of a pixel
  int64_t row_stride;  // floats between kernel rows
  int64_t first;       // input column of the first tap of output 0, negative in the padding
  int stride, dilation;
  int kh, kw;              // valid kernel rows, taps of a row
  const float* weights;    // of the first valid kernel row of output channel 0
  int64_t weights_stride;  // floats between output channels
  const float* zeros;      // [c]
  int oc;
  const float* bias;  // [oc] or null
  float* y;           // [outputs, oc]
  int64_t outputs;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <int P, int N>
HWY_INLINE void add_run(const float* const* x, const float* w, int64_t stride, int64_t count,
                        VF (&sums)[P][N]) {
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= count; i += static_cast<int64_t>(kLanes)) {
    VF in[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) in[p] = hn::LoadU(kF, x[p] + i);
#pragma GCC unroll 8
    for (int o = 0; o < N; ++o) {
      const VF taps = hn::LoadU(kF, w + o * stride + i);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sums[p][o] = hn::MulAdd(in[p], taps, sums[p][o]);
    }
  }
  if (i == count) return;
  const size_t left = static_cast<size_t>(count - i);
#pragma GCC unroll 8
  for (int o = 0; o < N; ++o) {
    const VF taps = load_n(w + o * stride + i, left);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sums[p][o] = hn::MulAdd(load_n(x[p] + i, left), taps, sums[p][o]);
  }
}

/// Outputs [at, at + P) of the line.
template <int P, int N>
HWY_NOINLINE void narrow_tile(const NarrowLine& t, int64_t at) {
  VF sums[P][N];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int o = 0; o < N; ++o) sums[p][o] = hn::Zero(kF);
  }
  for (int row = 0; row < t.kh; ++row) {
    for (int tap = 0; tap < t.kw; ++tap) {
      const float* x[P];
      for (int p = 0; p < P; ++p) {
        const int64_t column = t.first + (at + p) * t.stride + int64_t{tap} * t.dilation;
        x[p] = column < 0 || column >= t.w ? t.zeros : t.x + row * t.row_stride + column * t.c;
      }
      add_run<P, N>(x, t.weights + (row * t.kw + tap) * t.c, t.weights_stride, t.c, sums);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int o = 0; o < N; ++o)
      t.y[(at + p) * N + o] = hn::GetLane(hn::SumOfLanes(kF, sums[p][o])) + (t.bias ? t.bias[o] : 0.0f);
  }
}

template <int N>
void narrow_line_of(const NarrowLine& t) {
  constexpr int kSums = kLanes >= 16 ? 24 : 8;
  constexpr int kFit = kSums / N < 1 ? 1 : kSums / N;
  constexpr int kPixels = kFit > 6 ? 6 : kFit;
  int64_t at = 0;
  for (; at + kPixels <= t.outputs; at += kPixels) narrow_tile<kPixels, N>(t, at);
  for (; at < t.outputs; ++at) narrow_tile<1, N>(t, at);
}

void narrow_line(const NarrowLine& t) {
  switch (t.oc) {
    case 1: return narrow_line_of<1>(t);
    case 2: return narrow_line_of<2>(t);
    case 3: return narrow_line_of<3>(t);
    case 4: return narrow_line_of<4>(t);
    case 5: return narrow_line_of<5>(t);
    case 6: return narrow_line_of<6>(t);
    case 7: return narrow_line_of<7>(t);
    default: return narrow_line_of<8>(t);
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(narrow_line);

namespace {

/// Residual and activation of `count` finished sums at y.
void finish(const Epilogue& e, const float* residual, float* y, int64_t count) {
  if (residual != nullptr && !e.act_before_residual) {
    for (int64_t i = 0; i < count; ++i) y[i] += residual[i];
    residual = nullptr;
  }
  if (e.act != Activation::none || residual != nullptr)
    dense_kernels(best_isa()).activate({y, count, 1, count, residual}, e);
}

/// A pointwise convolution is one line of pixels.
ConvShape lines_of(ConvShape s) {
  const bool pads = s.pad_top || s.pad_left || s.pad_bottom || s.pad_right;
  if (s.kh != 1 || s.kw != 1 || s.stride_h != 1 || s.stride_w != 1 || pads) return s;
  s.w *= s.n * s.h;
  s.n = s.h = 1;
  return s;
}

}  // namespace

bool narrow_fits(const ConvShape& s) {
  return s.groups == 1 && s.c >= 16 && s.oc >= 1 && s.oc <= kMostNarrowOutputs;
}

size_t packed_narrow_bytes(const ConvShape& s) {
  return static_cast<size_t>((s.oc * s.kh * s.kw + 1) * s.c) * sizeof(float) + 64;
}

const float* pack_narrow(const ConvShape& s, const float* weights, void* memory) {
  const int64_t taps = int64_t{s.kh} * s.kw;
  float* out = reinterpret_cast<float*>(align64(memory));
  for (int64_t o = 0; o < s.oc; ++o) {
    for (int64_t c = 0; c < s.c; ++c) {
      for (int64_t t = 0; t < taps; ++t) out[(o * taps + t) * s.c + c] = weights[(o * s.c + c) * taps + t];
    }
  }
  std::fill_n(out + s.oc * taps * s.c, s.c, 0.0f);
  return out;
}

void narrow_nhwc(const NarrowArgs& args, base::ThreadPool& pool) {
  const ConvShape s = lines_of(args.shape);
  const Epilogue& e = args.epilogue;
  base::check(narrow_fits(s), "not a convolution to a few channels");
  if (s.n == 0 || s.out_h() <= 0 || s.out_w() <= 0) return;
  simd_ready();
  const auto line = HWY_DYNAMIC_DISPATCH(narrow_line);
  const int64_t oh = s.out_h(), ow = s.out_w(), taps = int64_t{s.kh} * s.kw;
  const int64_t piece = 1 + 30000 / (s.c * s.oc * taps), pieces = divide_up(ow, piece);
  pool.run(s.n * oh * pieces, [&](int64_t task) {
    const int64_t at = ow * (task % pieces) / pieces, end = ow * (task % pieces + 1) / pieces;
    const int64_t row = task / pieces % oh, image = task / pieces / oh, ih = row * s.stride_h - s.pad_top;
    const int64_t top = ih < 0 ? std::min<int64_t>(s.kh, divide_up(-ih, s.dilation_h)) : 0;
    const int64_t bottom = ih >= s.h ? 0 : std::min<int64_t>(s.kh, divide_up(s.h - ih, s.dilation_h));
    const int64_t pixel = (image * oh + row) * ow + at;
    NarrowLine t;
    t.x = args.x + (image * s.h + ih + top * s.dilation_h) * s.w * s.c;
    t.w = s.w, t.c = s.c;
    t.row_stride = s.dilation_h * s.w * s.c;
    t.first = at * s.stride_w - s.pad_left;
    t.stride = s.stride_w, t.dilation = s.dilation_w;
    t.kh = static_cast<int>(std::max<int64_t>(0, bottom - top)), t.kw = s.kw;
    t.weights = args.weights + top * s.kw * s.c;
    t.weights_stride = taps * s.c;
    t.zeros = args.weights + s.oc * taps * s.c;
    t.oc = static_cast<int>(s.oc);
    t.bias = e.bias;
    t.y = args.y + pixel * s.oc;
    t.outputs = end - at;
    line(t);
    finish(e, e.residual ? e.residual + pixel * s.oc : nullptr, t.y, t.outputs * s.oc);
  });
}

}  // namespace trireme::cpu
#endif
