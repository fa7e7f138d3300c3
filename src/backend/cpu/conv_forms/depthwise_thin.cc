// Copies lines of the image into a ring of runs and walks a line of outputs across pixels and channels.
#include "backend/cpu/conv_forms/depthwise_thin.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "backend/cpu/conv_forms/conv_choice.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv_forms/depthwise_thin.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_DEPTHWISE_THIN_TYPES
#define TRIREME_DEPTHWISE_THIN_TYPES
namespace trireme::cpu {

/// One line of outputs. A period is the least number of whole pixels that fill whole vectors.
struct ThinLine {
  const float* const* rows;  // [kh] lines under the valid kernel rows, padding included
  const float* weights;      // [vectors of a period, all kernel rows, kw, lanes], from the first valid row on
  const int64_t* taps;       // [kw] floats from a line to what a tap of its first output reads
  int kh, kw;                // valid kernel rows, taps of a row
  int64_t vector_weights;    // floats from the weights of a vector of a period to those of the next
  int64_t floats, period;    // of the line and of a period
  float* y;
  const float* bias;      // [period] or null
  const float* residual;  // like y, or null
  float lo, hi;
  bool clamps, act_before_residual;
};

/// Pixels of a line of the image on their way into the runs of a line of the ring.
struct ThinCopy {
  const float* x;
  int64_t pixels, c;
  int64_t runs, run_floats;  // runs of a line, floats from one to the next
  int64_t left;              // pixels of padding before the first
  float* out;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int kW = static_cast<int>(kLanes);
/// Vectors that are summed at a time: registers hold them and the weights of a tap.
constexpr int kMostVectors = kW >= 16 ? 14 : 12;

/// Vectors of P neighbouring periods at the same place in each, the first at float `at` of the line.
template <int P>
HWY_NOINLINE void tile(const ThinLine& t, int64_t at) {
  const int64_t place = at % t.period;
  const VF bias = t.bias ? hn::LoadU(kF, t.bias + place) : hn::Zero(kF);
  VF sums[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) sums[p] = bias;
  const float* w = t.weights + place / kW * t.vector_weights;
  for (int row = 0; row < t.kh; ++row) {
    for (int k = 0; k < t.kw; ++k, w += kW) {
      const float* x = t.rows[row] + t.taps[k] + at;
      const VF taps = hn::LoadU(kF, w);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) sums[p] = hn::MulAdd(hn::LoadU(kF, x + p * t.period), taps, sums[p]);
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p, at += t.period) {
    const size_t left = static_cast<size_t>(t.floats - at);
    const bool whole = left >= kLanes;
    VF residual = hn::Zero(kF);
    if (t.residual) residual = whole ? hn::LoadU(kF, t.residual + at) : load_n(t.residual + at, left);
    VF y = sums[p];
    if (t.residual && !t.act_before_residual) y = hn::Add(y, residual);
    if (t.clamps) y = clamp_keep_nan(y, t.lo, t.hi);
    if (t.residual && t.act_before_residual) y = hn::Add(y, residual);
    whole ? hn::StoreU(y, kF, t.y + at) : store_n(y, t.y + at, left);
  }
}

using TileFn = void (*)(const ThinLine&, int64_t);

/// Tiles of 1 to kMostVectors vectors.
template <size_t... I>
constexpr std::array<TileFn, kMostVectors> tiles_of(std::index_sequence<I...>) {
  return {&tile<static_cast<int>(I) + 1>...};
}

/// Blocks of a few periods, whose input stays in the first-level cache while all places of a period are
/// summed.
void thin_line(const ThinLine& t) {
  static constexpr std::array<TileFn, kMostVectors> kTiles =
      tiles_of(std::make_index_sequence<kMostVectors>());
  const int64_t periods = (t.floats + t.period - 1) / t.period;
  const int64_t blocks = (periods + kMostVectors - 1) / kMostVectors;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = periods * i / blocks * t.period;
    const int64_t end = std::min(t.floats, periods * (i + 1) / blocks * t.period);
    const int64_t last = std::min(end, begin + t.period);
    for (int64_t at = begin; at < last; at += kW)
      kTiles[static_cast<size_t>((end - at - 1) / t.period)](t, at);
  }
}

void thin_copy(const ThinCopy& g) {
  if (g.runs == 1) {
    std::memcpy(g.out + g.left * g.c, g.x, static_cast<size_t>(g.pixels * g.c) * sizeof(float));
    return;
  }
  // Whole vectors overwrite the pixels behind, which are copied later; near the end of the line nothing is.
  const int64_t whole = std::max<int64_t>(0, g.pixels - g.runs * ((kW + g.c - 1) / g.c));
  const float* x = g.x;
  int64_t run = g.left % g.runs, at = g.left / g.runs * g.c;
  for (int64_t i = 0; i < g.pixels; ++i, x += g.c) {
    float* to = g.out + run * g.run_floats + at;
    if (i < whole) {
      for (int64_t c = 0; c < g.c; c += kW) hn::StoreU(hn::LoadU(kF, x + c), kF, to + c);
    } else {
      std::memcpy(to, x, static_cast<size_t>(g.c) * sizeof(float));
    }
    if (++run == g.runs) run = 0, at += g.c;
  }
}

int thin_lanes() { return kW; }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(thin_line);
HWY_EXPORT(thin_copy);
HWY_EXPORT(thin_lanes);

namespace {

constexpr int kMostRows = 64, kMostTaps = 64;  // of a kernel, and of a row of it

int lanes_now() {
  simd_ready();
  return HWY_DYNAMIC_DISPATCH(thin_lanes)();
}

/// Where a line of the ring has what.
struct ThinLayout {
  int64_t lanes, period;     // floats of a vector and of a period
  int64_t pixels;            // of a line with the padding that outputs read
  int64_t runs, run_floats;  // a run has every runs-th pixel, and a vector that may be read beyond the last
  int64_t rows;              // lines that a kernel spans

  int64_t row_floats() const { return runs * run_floats; }
  size_t bytes() const { return align64(static_cast<size_t>(rows * row_floats()) * sizeof(float)); }
  size_t bias_bytes() const { return align64(static_cast<size_t>(period) * sizeof(float)); }
};

ThinLayout layout_of(const ConvShape& s) {
  ThinLayout l = {};
  l.lanes = lanes_now();
  l.period = std::lcm(s.c, l.lanes);
  l.pixels = s.window_pixels();
  l.runs = s.stride_w;
  l.run_floats = divide_up(l.pixels, l.runs) * s.c + l.lanes;
  l.rows = s.window_lines();
  return l;
}

class DepthwiseThin {
 public:
  DepthwiseThin(const DepthwiseThinArgs& args, const float* bias, int threads)
      : a_(args), s_(args.shape), l_(layout_of(args.shape)), bias_(bias) {
    line_ = HWY_DYNAMIC_DISPATCH(thin_line);
    copy_ = HWY_DYNAMIC_DISPATCH(thin_copy);
    clamps_ = clamp_bounds(a_.epilogue, lo_, hi_);
    left_ = std::min<int64_t>(s_.pad_left, l_.pixels);
    inside_ = std::clamp<int64_t>(s_.w, 0, l_.pixels - left_);
    for (int64_t k = 0; k < s_.kw; ++k) {
      const int64_t pixel = k * s_.dilation_w;
      taps_[static_cast<size_t>(k)] = pixel % l_.runs * l_.run_floats + pixel / l_.runs * s_.c;
    }
    // A band copies the lines above its first output once more: no more bands than the team needs.
    const int64_t wanted = threads == 1 ? 1 : divide_up(int64_t{4} * threads, s_.n);
    bands_ = std::clamp<int64_t>(std::min(wanted, s_.out_h() / l_.rows), 1, s_.out_h());
  }

  int64_t tasks() const { return s_.n * bands_; }
  const ThinLayout& layout() const { return l_; }

  void task(int64_t index, float* ring) const {
    const int64_t band = index % bands_, image = index / bands_;
    const int64_t begin = s_.out_h() * band / bands_, end = s_.out_h() * (band + 1) / bands_;
    std::fill_n(ring, l_.rows * l_.row_floats(), 0.0f);
    int64_t copied = 0;  // lines of the image above it are in the ring or not read any more
    for (int64_t oh = begin; oh < end; ++oh) {
      const int64_t top = oh * s_.stride_h - s_.pad_top;
      const int64_t below = std::min(s_.h, top + l_.rows);
      for (copied = std::max(copied, top); copied < below; ++copied)
        copy_({a_.x + (image * s_.h + copied) * s_.w * s_.c, inside_, s_.c, l_.runs, l_.run_floats, left_,
               slot(ring, copied)});
      run_line(image, oh, ring);
    }
  }

 private:
  float* slot(float* ring, int64_t ih) const { return ring + ih % l_.rows * l_.row_floats(); }

  void run_line(int64_t image, int64_t oh, float* ring) const {
    const Epilogue& e = a_.epilogue;
    const int64_t ih = oh * s_.stride_h - s_.pad_top;
    const int64_t top = ih < 0 ? std::min<int64_t>(s_.kh, divide_up(-ih, s_.dilation_h)) : 0;
    const int64_t bottom = ih >= s_.h ? 0 : std::min<int64_t>(s_.kh, divide_up(s_.h - ih, s_.dilation_h));
    const int64_t floats = s_.out_w() * s_.c, at = (image * s_.out_h() + oh) * floats;
    const bool later = !clamps_ && e.act_before_residual;  // the residual follows a curved activation
    const float* residual = e.residual ? e.residual + at : nullptr;
    const float* rows[kMostRows];
    for (int64_t k = top; k < bottom; ++k) rows[k - top] = slot(ring, ih + k * s_.dilation_h);
    ThinLine t;
    t.rows = rows, t.taps = taps_.data();
    t.kh = static_cast<int>(std::max<int64_t>(0, bottom - top)), t.kw = s_.kw;
    t.weights = a_.weights + top * s_.kw * l_.lanes;
    t.vector_weights = int64_t{s_.kh} * s_.kw * l_.lanes;
    t.floats = floats, t.period = l_.period;
    t.y = a_.y + at;
    t.bias = bias_;
    t.residual = later ? nullptr : residual;
    t.lo = lo_, t.hi = hi_;
    t.clamps = clamps_ && e.act != Activation::none;
    t.act_before_residual = e.act_before_residual;
    line_(t);
    if (!clamps_) dense_kernels(best_isa()).activate({t.y, floats, 1, floats, later ? residual : nullptr}, e);
  }

  const DepthwiseThinArgs& a_;
  const ConvShape& s_;
  const ThinLayout l_;
  const float* bias_;  // [period] or null
  std::array<int64_t, kMostTaps> taps_ = {};
  int64_t bands_, left_, inside_;
  void (*line_)(const ThinLine&);
  void (*copy_)(const ThinCopy&);
  bool clamps_;
  float lo_, hi_;
};

}  // namespace

bool depthwise_thin_fits(const ConvShape& s) {
  constexpr int64_t kMostChannels = 64;  // of more, a smaller share of the lanes stays empty
  return conv_is_depthwise(s) && s.c <= kMostChannels && s.c % lanes_now() != 0 && s.kh <= kMostRows &&
         s.kw <= kMostTaps && copy_is_proportionate(s, s.window_lines() * s.window_pixels());
}

size_t packed_depthwise_thin_bytes(const ConvShape& s) {
  return static_cast<size_t>(std::lcm<int64_t>(s.c, lanes_now()) * s.kh * s.kw) * sizeof(float) + 64;
}

const float* pack_depthwise_thin(const ConvShape& s, const float* weights, void* memory) {
  const int64_t lanes = lanes_now(), taps = int64_t{s.kh} * s.kw, period = std::lcm(s.c, lanes);
  float* const packed = reinterpret_cast<float*>(align64(memory));
  float* to = packed;
  for (int64_t first = 0; first < period; first += lanes) {
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t l = first; l < first + lanes; ++l) *to++ = weights[l % s.c * taps + t];
    }
  }
  return packed;
}

size_t depthwise_thin_workspace_bytes(const ConvShape& s, int threads) {
  const ThinLayout l = layout_of(s);
  return l.bias_bytes() + static_cast<size_t>(threads) * l.bytes() + 64;
}

void depthwise_thin_nhwc(const DepthwiseThinArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(depthwise_thin_fits(s), "not a depthwise convolution of few channels and few kernel rows");
  if (s.n == 0 || s.c == 0 || s.out_h() <= 0 || s.out_w() <= 0) return;
  char* memory = align64(workspace);
  float* bias = args.epilogue.bias ? reinterpret_cast<float*>(memory) : nullptr;
  const DepthwiseThin layer(args, bias, pool.size());
  const ThinLayout& l = layer.layout();
  if (bias) {
    for (int64_t i = 0; i < l.period; ++i) bias[i] = args.epilogue.bias[i % s.c];
  }
  memory += l.bias_bytes();
  run_lanes(pool, layer.tasks(), [&](int64_t i, int lane) {
    layer.task(i, reinterpret_cast<float*>(memory + static_cast<size_t>(lane) * l.bytes()));
  });
}

}  // namespace trireme::cpu
#endif
