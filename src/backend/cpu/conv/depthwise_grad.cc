// Lines of depthwise gradients, vectors over channels.
#include "backend/cpu/conv/depthwise_grad.h"

#include <algorithm>

#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/dense/gemm_tn.h"
#include "backend/cpu/simd/simd_level.h"

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/depthwise_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_DEPTHWISE_GRAD_LINES
#define TRIREME_DEPTHWISE_GRAD_LINES
namespace trireme::cpu {

constexpr int kMostKernel = 32;  // along an axis, where strides make a pixel gather its windows

/// One line of dx [w, c] from the image's dy [oh, ow, c] and weights [kh, kw, c].
struct DepthwiseGradXLine {
  const ConvShape* shape;
  const float* dy;
  const float* weights;
  float* dx;
  int64_t ih;
};

/// Adds one line of dy [ow, c] times its input line x [w, c] to one kernel row of sums [kw, c], for channels
/// [first, last).
struct DepthwiseGradWLine {
  const ConvShape* shape;
  const float* x;
  const float* dy;
  float* sums;
  int64_t first, last;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE VF load_some(const float* p, size_t n) { return n >= kLanes ? hn::LoadU(kF, p) : load_n(p, n); }

HWY_INLINE void store_some(VF v, float* p, size_t n) {
  n >= kLanes ? hn::StoreU(v, kF, p) : store_n(v, p, n);
}

/// The sum of `count` products of pixels of dy and taps, all channels; the first vectors four at a time.
HWY_INLINE void sum_windows(const float* const* dy, const float* const* taps, int count, int64_t channels,
                            float* dx) {
  constexpr int64_t kW = static_cast<int64_t>(kLanes);
  int64_t c = 0;
  for (; c + 4 * kW <= channels; c += 4 * kW) {
    VF sum[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
    for (int t = 0; t < count; ++t) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v)
        sum[v] = hn::MulAdd(hn::LoadU(kF, dy[t] + c + v * kW), hn::LoadU(kF, taps[t] + c + v * kW), sum[v]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) hn::StoreU(sum[v], kF, dx + c + v * kW);
  }
  for (; c < channels; c += kW) {
    const size_t left = static_cast<size_t>(channels - c);
    VF sum = set(0.0f);
    for (int t = 0; t < count; ++t)
      sum = hn::MulAdd(load_some(dy[t] + c, left), load_some(taps[t] + c, left), sum);
    store_some(sum, dx + c, left);
  }
}

void grad_x_line(const DepthwiseGradXLine& line) {
  const ConvShape& s = *line.shape;
  const int64_t oh = s.out_h(), ow = s.out_w();
  const float* rows[kMostKernel];  // of dy, each with its kernel row
  int kernel_rows[kMostKernel];
  int count = 0;
  for (int i = 0; i < s.kh; ++i) {
    const int64_t down = line.ih + s.pad_top - int64_t{i} * s.dilation_h;
    if (down < 0 || down % s.stride_h != 0 || down / s.stride_h >= oh) continue;
    rows[count] = line.dy + down / s.stride_h * ow * s.c;
    kernel_rows[count++] = i;
  }
  for (int64_t iw = 0; iw < s.w; ++iw) {
    const float *dy[kMostKernel * kMostKernel], *taps[kMostKernel * kMostKernel];
    int windows = 0;
    for (int r = 0; r < count; ++r) {
      for (int j = 0; j < s.kw; ++j) {
        const int64_t right = iw + s.pad_left - int64_t{j} * s.dilation_w;
        if (right < 0 || right % s.stride_w != 0 || right / s.stride_w >= ow) continue;
        dy[windows] = rows[r] + right / s.stride_w * s.c;
        taps[windows++] = line.weights + (kernel_rows[r] * s.kw + j) * s.c;
      }
    }
    sum_windows(dy, taps, windows, s.c, line.dx + iw * s.c);
  }
}

/// Taps [tap, tap + N) of one vector of channels over the whole line: N chains at a time.
template <int N>
HWY_INLINE void grad_w_taps(const DepthwiseGradWLine& line, int64_t tap, int64_t c, size_t left) {
  const ConvShape& s = *line.shape;
  const int64_t ow = s.out_w(), step = s.stride_w;
  VF sum[N];
  for (int j = 0; j < N; ++j) sum[j] = load_some(line.sums + (tap + j) * s.c + c, left);
  const int64_t right = tap * s.dilation_w - s.pad_left, reach = int64_t{N - 1} * s.dilation_w;
  // Columns [low, high) have all N taps inside.
  const int64_t low = std::min(ow, right >= 0 ? 0 : (-right + step - 1) / step);
  const int64_t room = s.w - right - reach;
  const int64_t high = std::max(low, room <= 0 ? 0 : std::min(ow, (room + step - 1) / step));
  const auto edge = [&](int64_t o) HWY_ATTR {
    const VF g = load_some(line.dy + o * s.c + c, left);
    for (int j = 0; j < N; ++j) {
      const int64_t iw = o * step + right + j * s.dilation_w;
      if (iw >= 0 && iw < s.w) sum[j] = hn::MulAdd(g, load_some(line.x + iw * s.c + c, left), sum[j]);
    }
  };
  for (int64_t o = 0; o < low; ++o) edge(o);
  for (int64_t o = low; o < high; ++o) {
    const VF g = load_some(line.dy + o * s.c + c, left);
    const float* x = line.x + (o * step + right) * s.c + c;
    for (int j = 0; j < N; ++j) sum[j] = hn::MulAdd(g, load_some(x + j * s.dilation_w * s.c, left), sum[j]);
  }
  for (int64_t o = high; o < ow; ++o) edge(o);
  for (int j = 0; j < N; ++j) store_some(sum[j], line.sums + (tap + j) * s.c + c, left);
}

void grad_w_line(const DepthwiseGradWLine& line) {
  for (int64_t c = line.first; c < line.last; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(line.last - c);
    int64_t tap = 0;
    for (; tap + 5 <= line.shape->kw; tap += 5) grad_w_taps<5>(line, tap, c, left);
    for (; tap + 3 <= line.shape->kw; tap += 3) grad_w_taps<3>(line, tap, c, left);
    for (; tap < line.shape->kw; ++tap) grad_w_taps<1>(line, tap, c, left);
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(grad_x_line);
HWY_EXPORT(grad_w_line);

namespace {

constexpr int64_t kBlockChannels = 64;
constexpr int64_t kPieces = 8;  // of the images

/// The backward convolution runs on the forward kernel where it is one of stride 1.
bool turns_around(const ConvShape& s) {
  const ConvShape b = backward_shape(s);
  return s.stride_h == 1 && s.stride_w == 1 && b.pad_top >= 0 && b.pad_left >= 0;
}

}  // namespace

bool depthwise_grad_fits(const ConvShape& s) {
  return s.groups == s.c && s.oc == s.c && s.kh <= kMostKernel && s.kw <= kMostKernel;
}

size_t depthwise_grad_x_bytes(const ConvShape& s, int) {
  return static_cast<size_t>(s.c * s.kh * s.kw) * sizeof(float);
}

void depthwise_grad_x(const ConvGradXArgs& a, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  float* weights = static_cast<float*>(workspace);  // [kh, kw, c]
  pack_depthwise(s, a.weights, weights);
  if (turns_around(s)) {
    const int64_t taps = s.kh * s.kw;
    for (int64_t t = 0; t < taps / 2; ++t)
      std::swap_ranges(weights + t * s.c, weights + (t + 1) * s.c, weights + (taps - 1 - t) * s.c);
    return depthwise_nhwc({backward_shape(s), a.dy, weights, a.dx, {}}, pool);
  }
  simd_ready();
  const auto run = HWY_DYNAMIC_DISPATCH(grad_x_line);
  const int64_t dy_image = s.out_h() * s.out_w() * s.c;
  pool.for_range(s.n * s.h, 1 + 30000 / (s.w * s.c * s.kh * s.kw + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      run({&s, a.dy + i / s.h * dy_image, weights, a.dx + i * s.w * s.c, i % s.h});
  });
}

size_t depthwise_grad_w_bytes(const ConvShape& s, int) {
  return static_cast<size_t>(std::min(kPieces, s.n) * s.c * s.kh * s.kw) * sizeof(float);
}

void depthwise_grad_w(const ConvGradWArgs& a, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  float* sums = static_cast<float*>(workspace);  // [pieces, kh, kw, c]
  const int64_t pieces = std::min(kPieces, s.n), size = s.c * s.kh * s.kw, oh = s.out_h(), ow = s.out_w();
  const int64_t blocks = (s.c + kBlockChannels - 1) / kBlockChannels;
  simd_ready();
  const auto run = HWY_DYNAMIC_DISPATCH(grad_w_line);
  pool.run(pieces * blocks, [&](int64_t task) {
    const int64_t piece = task / blocks, first = task % blocks * kBlockChannels;
    const int64_t last = std::min(s.c, first + kBlockChannels);
    float* part = sums + piece * size;
    for (int64_t t = 0; t < s.kh * s.kw; ++t) std::fill(part + t * s.c + first, part + t * s.c + last, 0.0f);
    for (int64_t line = s.n * piece / pieces * oh; line < s.n * (piece + 1) / pieces * oh; ++line) {
      for (int64_t i = 0; i < s.kh; ++i) {
        const int64_t ih = line % oh * s.stride_h - s.pad_top + i * s.dilation_h;
        if (ih < 0 || ih >= s.h) continue;
        run({&s, a.x + (line / oh * s.h + ih) * s.w * s.c, a.dy + line * ow * s.c, part + i * s.kw * s.c,
             first, last});
      }
    }
  });
  sum_tree(sums, pieces, size, 0, size);
  const int64_t taps = s.kh * s.kw;
  for (int64_t t = 0; t < taps; ++t) {
    for (int64_t c = 0; c < s.c; ++c) a.dw[c * taps + t] = sums[t * s.c + c];
  }
}

}  // namespace trireme::cpu
#endif
