// Copies the lines of a few vectors of channels into a ring and walks pixels with their sums in registers.
#include "backend/cpu/conv_forms/depthwise_lines.h"

#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/conv_forms/conv_choice.h"
#include "backend/cpu/conv_forms/depthwise_thin.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv_forms/depthwise_lines.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_DEPTHWISE_LINES_TYPES
#define TRIREME_DEPTHWISE_LINES_TYPES
namespace trireme::cpu {

/// One output line of one vector of channels.
struct DepthwiseLine {
  const float* const* rows;  // [kh] lines under the valid kernel rows, padding included: [pixels, lanes]
  const float* weights;      // [kh, kw, lanes] from the first valid kernel row on
  int kh, kw;                // valid kernel rows, taps of a row
  int64_t stride, dilation;  // pixels between the taps of neighbouring outputs, and of one output
  float* y;                  // [ow, c] from the vector's first channel on
  int64_t ow, c;
  size_t valid;           // channels of the vector
  const float* bias;      // or null
  const float* residual;  // like y, or null
  float lo, hi;
  bool clamps, act_before_residual;
};

/// Pixels of one line of the image on their way into the ring: out[vector, pixels, lanes] from x[.., c], with
/// `vector_stride` floats between the lines of neighbouring vectors.
struct DepthwiseCopy {
  const float* x;
  int64_t pixels, c;
  size_t valid;
  float* out;
  int64_t vector_stride;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int kW = static_cast<int>(kLanes);
/// Outputs of a line that are summed at a time: registers hold them and the weights of a tap.
constexpr int kMostPixels = kW >= 16 ? 16 : 12;

HWY_INLINE VF load_part(const float* p, size_t left) {
  return left >= kLanes ? hn::LoadU(kF, p) : load_n(p, left);
}

HWY_INLINE void store_part(VF v, float* p, size_t left) {
  left >= kLanes ? hn::StoreU(v, kF, p) : store_n(v, p, left);
}

/// P outputs from column `first` on; S is the stride where the tile is made for it, or 0.
template <int P, int S>
HWY_NOINLINE void tile(const DepthwiseLine& t, int64_t first) {
  const int64_t step = (S > 0 ? S : t.stride) * kW, tap = t.dilation * kW;
  const VF bias = t.bias ? load_part(t.bias, t.valid) : hn::Zero(kF);
  VF sums[P];
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) sums[p] = bias;
  const float* w = t.weights;
  for (int row = 0; row < t.kh; ++row) {
    const float* x = t.rows[row] + first * step;
    for (int k = 0; k < t.kw; ++k, x += tap, w += kW) {
      const VF taps = hn::LoadU(kF, w);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) sums[p] = hn::MulAdd(hn::LoadU(kF, x + p * step), taps, sums[p]);
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
    const int64_t at = (first + p) * t.c;
    const VF residual = t.residual ? load_part(t.residual + at, t.valid) : hn::Zero(kF);
    VF y = sums[p];
    if (t.residual && !t.act_before_residual) y = hn::Add(y, residual);
    if (t.clamps) y = clamp_keep_nan(y, t.lo, t.hi);
    if (t.residual && t.act_before_residual) y = hn::Add(y, residual);
    store_part(y, t.y + at, t.valid);
  }
}

using TileFn = void (*)(const DepthwiseLine&, int64_t);

/// Tiles of 1 to kMostPixels outputs.
template <int S, size_t... I>
constexpr std::array<TileFn, kMostPixels> tiles_of(std::index_sequence<I...>) {
  return {&tile<static_cast<int>(I) + 1, S>...};
}

/// A line in as few tiles as registers allow, of sizes that differ by one at most.
template <int S>
void line(const DepthwiseLine& t) {
  static constexpr std::array<TileFn, kMostPixels> kTiles =
      tiles_of<S>(std::make_index_sequence<kMostPixels>());
  const int64_t tiles = (t.ow + kMostPixels - 1) / kMostPixels;
  for (int64_t i = 0, begin = 0, end; i < tiles; ++i, begin = end) {
    end = t.ow * (i + 1) / tiles;
    kTiles[static_cast<size_t>(end - begin - 1)](t, begin);
  }
}

void depthwise_line(const DepthwiseLine& t) {
  if (t.stride == 1) return line<1>(t);
  t.stride == 2 ? line<2>(t) : line<0>(t);
}

void depthwise_copy(const DepthwiseCopy& g) {
  const float* x = g.x;
  float* out = g.out;
  for (int64_t i = 0; i < g.pixels; ++i, x += g.c, out += kW) {
    __builtin_prefetch(x + 12 * g.c, 0, 3);  // the processor does not foresee pixels a line or more apart
    float* to = out;
    for (size_t c = 0; c < g.valid; c += kLanes, to += g.vector_stride)
      hn::StoreU(load_part(x + c, g.valid - c), kF, to);
  }
}

int depthwise_lanes() { return kW; }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(depthwise_line);
HWY_EXPORT(depthwise_copy);
HWY_EXPORT(depthwise_lanes);

namespace {

constexpr int kMostRows = 64;              // of a kernel
constexpr int64_t kMostVectors = 4;        // of a block: lines of the image are read in runs of 256 bytes
constexpr int64_t kRingBytes = 32 * 1024;  // most of a first-level cache, beside the weights

int lanes_now() {
  simd_ready();
  return HWY_DYNAMIC_DISPATCH(depthwise_lanes)();
}

/// The lines that outputs of one block of channels are computed from.
struct Ring {
  int64_t lanes = 0, vectors = 1;  // of a block
  int64_t blocks = 0;
  int64_t pixels = 0;  // of a line with the padding that outputs read
  int64_t rows = 0;    // lines that a kernel spans
  /// Floats between the lines of neighbouring vectors, between lines, and of all.
  int64_t vector_floats() const { return pixels * lanes; }
  int64_t row_floats() const { return vectors * vector_floats(); }
  size_t bytes() const { return static_cast<size_t>(rows * row_floats()) * sizeof(float); }
};

Ring ring_of(const ConvShape& s, int64_t lanes) {
  Ring r;
  r.lanes = lanes;
  r.pixels = s.window_pixels();
  r.rows = s.window_lines();
  const int64_t all = divide_up(s.c, lanes);
  const int64_t fit = kRingBytes / (r.rows * r.vector_floats() * static_cast<int64_t>(sizeof(float)));
  r.vectors = std::min(all, std::clamp<int64_t>(fit, 1, kMostVectors));
  r.blocks = divide_up(all, r.vectors);
  return r;
}

class DepthwiseLines {
 public:
  DepthwiseLines(const DepthwiseLinesArgs& args, int threads)
      : a_(args), s_(args.shape), r_(ring_of(args.shape, args.weights.lanes)) {
    simd_ready();
    line_ = HWY_DYNAMIC_DISPATCH(depthwise_line);
    copy_ = HWY_DYNAMIC_DISPATCH(depthwise_copy);
    clamps_ = clamp_bounds(a_.epilogue, lo_, hi_);
    left_ = std::min<int64_t>(s_.pad_left, r_.pixels);
    inside_ = std::clamp<int64_t>(s_.w, 0, r_.pixels - left_);
    // A band copies the lines above its first output once more: no more bands than the team needs.
    const int64_t wanted = threads == 1 ? 1 : divide_up(int64_t{4} * threads, s_.n * r_.blocks);
    bands_ = std::clamp<int64_t>(std::min(wanted, s_.out_h() / r_.rows), 1, s_.out_h());
  }

  int64_t tasks() const { return s_.n * r_.blocks * bands_; }
  const Ring& ring() const { return r_; }

  void task(int64_t index, float* ring) const {
    const int64_t block = index % r_.blocks, band = index / r_.blocks % bands_;
    const int64_t image = index / r_.blocks / bands_;
    const int64_t begin = s_.out_h() * band / bands_, end = s_.out_h() * (band + 1) / bands_;
    clear_padding(ring);
    int64_t copied = 0;  // lines of the image above it are in the ring or not read any more
    for (int64_t oh = begin; oh < end; ++oh) {
      const int64_t top = oh * s_.stride_h - s_.pad_top;
      const int64_t below = std::min(s_.h, top + r_.rows);
      for (copied = std::max(copied, top); copied < below; ++copied) copy_line(image, copied, block, ring);
      run_line(image, oh, block, ring);
    }
  }

 private:
  float* slot(float* ring, int64_t ih) const { return ring + ih % r_.rows * r_.row_floats(); }

  /// What lies left and right of the image in every line is zero, whichever line it is.
  void clear_padding(float* ring) const {
    for (int64_t i = 0; i < r_.rows * r_.vectors; ++i, ring += r_.vector_floats()) {
      std::fill_n(ring, left_ * r_.lanes, 0.0f);
      std::fill(ring + (left_ + inside_) * r_.lanes, ring + r_.vector_floats(), 0.0f);
    }
  }

  /// First channel of a block, and how many it has.
  int64_t first(int64_t block) const { return block * r_.vectors * r_.lanes; }
  int64_t channels(int64_t block) const { return std::min(s_.c - first(block), r_.vectors * r_.lanes); }

  void copy_line(int64_t image, int64_t ih, int64_t block, float* ring) const {
    copy_({a_.x + (image * s_.h + ih) * s_.w * s_.c + first(block), inside_, s_.c,
           static_cast<size_t>(channels(block)), slot(ring, ih) + left_ * r_.lanes, r_.vector_floats()});
  }

  void run_line(int64_t image, int64_t oh, int64_t block, float* ring) const {
    const Epilogue& e = a_.epilogue;
    const int64_t ih = oh * s_.stride_h - s_.pad_top;
    const int64_t top = ih < 0 ? std::min<int64_t>(s_.kh, divide_up(-ih, s_.dilation_h)) : 0;
    const int64_t bottom = ih >= s_.h ? 0 : std::min<int64_t>(s_.kh, divide_up(s_.h - ih, s_.dilation_h));
    const int64_t at = (image * s_.out_h() + oh) * s_.out_w() * s_.c + first(block);
    const bool later = !clamps_ && e.act_before_residual;  // the residual follows a curved activation
    const float* residual = e.residual ? e.residual + at : nullptr;
    const float* rows[kMostRows];
    DepthwiseLine t;
    t.rows = rows;
    t.kh = static_cast<int>(std::max<int64_t>(0, bottom - top)), t.kw = s_.kw;
    t.stride = s_.stride_w, t.dilation = s_.dilation_w;
    t.ow = s_.out_w(), t.c = s_.c;
    t.lo = lo_, t.hi = hi_;
    t.clamps = clamps_ && e.act != Activation::none;
    t.act_before_residual = e.act_before_residual;
    const int64_t taps = int64_t{s_.kh} * s_.kw * r_.lanes;
    for (int64_t c = 0, v = 0; c < channels(block); c += r_.lanes, ++v) {
      for (int64_t k = top; k < bottom; ++k)
        rows[k - top] = slot(ring, ih + k * s_.dilation_h) + v * r_.vector_floats();
      t.weights = a_.weights.data + (block * r_.vectors + v) * taps + top * s_.kw * r_.lanes;
      t.y = a_.y + at + c;
      t.valid = static_cast<size_t>(std::min(channels(block) - c, r_.lanes));
      t.bias = e.bias ? e.bias + first(block) + c : nullptr;
      t.residual = residual && !later ? residual + c : nullptr;
      line_(t);
    }
    if (!clamps_)
      dense_kernels(best_isa())
          .activate({a_.y + at, s_.c, s_.out_w(), channels(block), later ? residual : nullptr}, e);
  }

  const DepthwiseLinesArgs& a_;
  const ConvShape& s_;
  const Ring r_;
  int64_t bands_, left_, inside_;
  void (*line_)(const DepthwiseLine&);
  void (*copy_)(const DepthwiseCopy&);
  bool clamps_;
  float lo_, hi_;
};

}  // namespace

bool depthwise_lines_fits(const ConvShape& s) {
  return conv_is_depthwise(s) && s.kh <= kMostRows &&
         copy_is_proportionate(s, s.window_lines() * s.window_pixels());
}

size_t packed_depthwise_lines_bytes(const ConvShape& s) {
  if (depthwise_thin_fits(s)) return packed_depthwise_thin_bytes(s);
  const int64_t lanes = lanes_now();
  return static_cast<size_t>(divide_up(s.c, lanes) * lanes * s.kh * s.kw) * sizeof(float) + 64;
}

PackedDepthwiseLines pack_depthwise_lines(const ConvShape& s, const float* weights, void* memory) {
  const int64_t lanes = lanes_now(), taps = int64_t{s.kh} * s.kw;
  if (depthwise_thin_fits(s)) return {pack_depthwise_thin(s, weights, memory), static_cast<int>(lanes)};
  float* to = reinterpret_cast<float*>(align64(memory));
  const PackedDepthwiseLines packed = {to, static_cast<int>(lanes)};
  for (int64_t first = 0; first < s.c; first += lanes) {
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t c = first; c < first + lanes; ++c) *to++ = c < s.c ? weights[c * taps + t] : 0.0f;
    }
  }
  return packed;
}

size_t depthwise_lines_workspace_bytes(const ConvShape& s, int threads) {
  if (depthwise_thin_fits(s)) return depthwise_thin_workspace_bytes(s, threads);
  return static_cast<size_t>(threads) * ring_of(s, lanes_now()).bytes() + 64;
}

void depthwise_lines_nhwc(const DepthwiseLinesArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(depthwise_lines_fits(s), "not a depthwise convolution of few kernel rows near the image");
  base::check(args.weights.lanes == lanes_now(), "depthwise weights were packed for another level");
  if (depthwise_thin_fits(s))
    return depthwise_thin_nhwc({s, args.x, args.weights.data, args.y, args.epilogue}, workspace, pool);
  if (s.n == 0 || s.c == 0 || s.out_h() <= 0 || s.out_w() <= 0) return;
  const DepthwiseLines layer(args, pool.size());
  char* memory = align64(workspace);
  run_lanes(pool, layer.tasks(), [&](int64_t i, int lane) {
    layer.task(i, reinterpret_cast<float*>(memory + static_cast<size_t>(lane) * layer.ring().bytes()));
  });
}

}  // namespace trireme::cpu
#endif
