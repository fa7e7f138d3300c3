// Copies bands of byte planes as floats, then sums taps in f32 lanes, where whole numbers below 2^24 are
// exact.
#include "backend/cpu/conv_forms/integer_planes.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/device/round_up.h"
#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv_forms/integer_planes.cc"
#include "hwy/foreach_target.h"
#ifndef TRIREME_INTEGER_PLANES_SHARED
#define TRIREME_INTEGER_PLANES_SHARED
namespace trireme::cpu {
namespace {

constexpr int64_t kMostExactTaps = 256;  // 256 * 255 * 255 < 2^24
constexpr size_t kSlackFloats = 64;      // what a vector may read behind the copy

// A band of result lines over the copy of its group, [channels, lines, stride_w, width] floats: column i of
// phase p holds pixel p + i * stride_w of the padded line.
struct PlaneBand {
  const float* lines;
  const int64_t* taps;  // where each tap reads, in floats behind the first
  int64_t tap_count, line_step, rows, columns;
};

// A line of bytes as floats less a zero point.
struct ByteLine {
  const void* x;
  bool is_signed;
  size_t n;
  float zero;
  float* out;
};

}  // namespace
}  // namespace trireme::cpu
#endif
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE void widen_bytes(const ByteLine& g) {
  const T* x = static_cast<const T*>(g.x);
  const hn::Rebind<T, F32> narrow;
  const hn::Rebind<int32_t, F32> wide;
  const VF zero = set(g.zero);
  size_t i = 0;
  for (; i + kLanes <= g.n; i += kLanes) {
    const VF v = hn::ConvertTo(kF, hn::PromoteTo(wide, hn::LoadU(narrow, x + i)));
    hn::StoreU(hn::Sub(v, zero), kF, g.out + i);
  }
  for (; i < g.n; ++i) g.out[i] = static_cast<float>(x[i]) - g.zero;
}

void widen_byte_line(const ByteLine& g) { g.is_signed ? widen_bytes<int8_t>(g) : widen_bytes<uint8_t>(g); }

// The columns of each of `stride` phases of a line, [width * stride] -> [stride, width].
void split_phases(const float* HWY_RESTRICT line, int64_t width, int64_t stride, float* HWY_RESTRICT out) {
  if (stride == 2) {  // a constant, for which the compiler has vectors
    for (int64_t i = 0; i < width; ++i) out[i] = line[2 * i];
    for (int64_t i = 0; i < width; ++i) out[width + i] = line[2 * i + 1];
    return;
  }
  for (int64_t phase = 0; phase < stride; ++phase) {
    for (int64_t i = 0; i < width; ++i) *out++ = line[i * stride + phase];
  }
}

// kMany vectors of neighbouring results of one line; `first` is their first column in the copy.
template <int kMany>
HWY_INLINE void sum_columns(const PlaneBand& b, const float* first, const float* weights, int32_t* y,
                            size_t n) {
  VF sum[kMany];
  for (int v = 0; v < kMany; ++v) sum[v] = hn::Zero(kF);
  for (int64_t t = 0; t < b.tap_count; ++t) {
    const float* x = first + b.taps[t];
    const VF w = set(weights[t]);
    for (int v = 0; v < kMany; ++v)
      sum[v] = hn::MulAdd(hn::LoadU(kF, x + static_cast<size_t>(v) * kLanes), w, sum[v]);
  }
  if (n == kMany * kLanes) {
    for (int v = 0; v < kMany; ++v)
      hn::StoreU(hn::ConvertTo(kI, sum[v]), kI, y + static_cast<size_t>(v) * kLanes);
    return;
  }
  HWY_ALIGN int32_t lanes[kMany * kLanes];
  for (int v = 0; v < kMany; ++v)
    hn::Store(hn::ConvertTo(kI, sum[v]), kI, lanes + static_cast<size_t>(v) * kLanes);
  std::memcpy(y, lanes, n * sizeof(int32_t));
}

// The band's lines of one result plane.
void sum_band(const PlaneBand& b, const float* weights, int32_t* y) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  for (int64_t r = 0; r < b.rows; ++r, y += b.columns) {
    const float* line = b.lines + r * b.line_step;
    for (int64_t i = 0; i < b.columns;) {
      const int64_t left = b.columns - i;
      const auto run = [&](const auto& sum, int64_t vectors) HWY_ATTR {
        const int64_t n = std::min(left, vectors * kStep);
        sum(b, line + i, weights, y + i, static_cast<size_t>(n));
        i += n;
      };
      if (left > 2 * kStep)
        run(sum_columns<4>, 4);
      else if (left > kStep)
        run(sum_columns<2>, 2);
      else
        run(sum_columns<1>, 1);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(widen_byte_line);
HWY_EXPORT(split_phases);
HWY_EXPORT(sum_band);

namespace {

constexpr int64_t kBandFloats = 12 * 1024;  // of a copy: it should stay in the cache next to the processor

// How the planes of a group are cut into bands of result lines, and the memory of a lane.
struct BandPlan {
  int64_t channels, width, line, rows, bands, most_lines;
  size_t copy_floats, padded_floats;
  size_t lane_bytes() const { return align64((copy_floats + padded_floats + kSlackFloats) * sizeof(float)); }
};

int64_t lines_of(const ConvShape& s, int64_t rows) { return (rows - 1) * s.stride_h + s.window_lines(); }

BandPlan plan_bands(const ConvShape& s) {
  BandPlan p{.channels = s.c / s.groups};
  const int64_t padded = s.w + s.pad_left + s.pad_right;
  p.width = divide_up(padded, s.stride_w);
  p.line = p.width * s.stride_w;
  const int64_t fitting = std::max<int64_t>(kBandFloats / (p.channels * p.line), 1);
  const int64_t least = s.window_lines();
  p.rows = fitting <= least ? 1 : 1 + (fitting - least) / s.stride_h;
  p.rows = std::min(std::max<int64_t>(p.rows, 4), s.out_h());
  p.bands = divide_up(s.out_h(), p.rows);
  p.most_lines = lines_of(s, p.rows);
  p.copy_floats = static_cast<size_t>(p.channels * p.most_lines * p.line) + kSlackFloats;
  p.padded_floats = s.stride_w > 1 ? static_cast<size_t>(p.line) : 0;
  return p;
}

// One line of the copy from line `ih` of a plane of bytes, which may lie outside; `padded` is memory of a
// line.
void copy_plane_line(const IntegerPlanes& a, const uint8_t* plane, int64_t ih, float* padded, float* out) {
  const ConvShape& s = a.shape;
  const int64_t width = divide_up(s.w + s.pad_left + s.pad_right, int64_t{s.stride_w});
  if (ih < 0 || ih >= s.h) {
    std::fill_n(out, width * s.stride_w, 0.0f);
    return;
  }
  float* line = s.stride_w > 1 ? padded : out;
  std::fill_n(line, s.pad_left, 0.0f);
  HWY_DYNAMIC_DISPATCH(widen_byte_line)
  ({plane + ih * s.w, a.input.is_signed, static_cast<size_t>(s.w), static_cast<float>(a.input.zero),
    line + s.pad_left});
  std::fill(line + s.pad_left + s.w, line + width * s.stride_w, 0.0f);
  if (s.stride_w > 1) HWY_DYNAMIC_DISPATCH(split_phases)(padded, width, s.stride_w, out);
}

// Weights of filter `o` less their zero point.
template <class T>
void read_filter(const IntegerPlanes& a, int64_t o, int64_t taps, float* out) {
  const T* w = static_cast<const T*>(a.w) + o * taps;
  const T* zeros = static_cast<const T*>(a.w_zero);
  const int32_t zero = zeros == nullptr ? 0 : zeros[a.zero_per_filter ? o : 0];
  for (int64_t i = 0; i < taps; ++i) out[i] = static_cast<float>(w[i] - zero);
}

void place_taps(const ConvShape& s, const BandPlan& p, int64_t* at) {
  for (int64_t c = 0; c < p.channels; ++c) {
    for (int64_t i = 0; i < s.kh; ++i) {
      for (int64_t j = 0; j < s.kw; ++j) {
        const int64_t line = c * p.most_lines + i * s.dilation_h, column = j * s.dilation_w;
        *at++ = line * p.line + column % s.stride_w * p.width + column / s.stride_w;
      }
    }
  }
}

// One band of one group of one image.
void run_plane_band(const IntegerPlanes& a, const BandPlan& p, int64_t task, float* memory) {
  const ConvShape& s = a.shape;
  const int64_t band = task % p.bands, group = task / p.bands % s.groups, image = task / p.bands / s.groups;
  const int64_t first = band * p.rows, rows = std::min(p.rows, s.out_h() - first);
  const int64_t lines = lines_of(s, rows), plane = p.most_lines * p.line;
  for (int64_t c = 0; c < p.channels; ++c) {
    const uint8_t* x = static_cast<const uint8_t*>(a.x) + (image * s.c + group * p.channels + c) * s.h * s.w;
    for (int64_t i = 0; i < lines; ++i) {
      copy_plane_line(a, x, first * s.stride_h + i - s.pad_top, memory + p.copy_floats,
                      memory + c * plane + i * p.line);
    }
  }
  int64_t at[kMostExactTaps];
  place_taps(s, p, at);
  const int64_t filters = s.oc / s.groups, taps = p.channels * s.kh * s.kw;
  const PlaneBand view{memory, at, taps, s.stride_h * p.line, rows, s.out_w()};
  float weights[kMostExactTaps];
  for (int64_t o = group * filters; o < (group + 1) * filters; ++o) {
    a.w_is_signed ? read_filter<int8_t>(a, o, taps, weights) : read_filter<uint8_t>(a, o, taps, weights);
    int32_t* y = a.y + ((image * s.oc + o) * s.out_h() + first) * s.out_w();
    HWY_DYNAMIC_DISPATCH(sum_band)(view, weights, y);
  }
}

}  // namespace

bool integer_planes_fits(const ConvShape& s) {
  constexpr int64_t kFewFilters = 8;
  const int64_t channels = s.c / s.groups, filters = s.oc / s.groups;
  const bool pads_inwards = std::min({s.pad_top, s.pad_left, s.pad_bottom, s.pad_right}) < 0;
  if (s.groups < 2 || channels < 1 || pads_inwards || s.out_h() < 1 || s.out_w() < 1) return false;
  if (channels * s.kh * s.kw > kMostExactTaps) return false;
  if (channels % 4 == 0 && filters >= kFewFilters) return false;
  const BandPlan plan = plan_bands(s);
  return copy_is_proportionate(s, plan.most_lines * plan.line);
}

size_t integer_planes_workspace_bytes(const ConvShape& shape, int threads) {
  return plan_bands(shape).lane_bytes() * static_cast<size_t>(threads) + kAlignment;
}

void integer_planes(const IntegerPlanes& args, void* workspace, base::ThreadPool& pool) {
  const BandPlan plan = plan_bands(args.shape);
  char* lanes = align64(workspace);
  run_lanes(pool, args.shape.n * args.shape.groups * plan.bands, [&](int64_t task, int lane) {
    void* memory = lanes + static_cast<size_t>(lane) * plan.lane_bytes();
    run_plane_band(args, plan, task, static_cast<float*>(memory));
  });
}

}  // namespace trireme::cpu
#endif
