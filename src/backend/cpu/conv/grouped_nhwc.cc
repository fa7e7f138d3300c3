// Copies the lines that a vector of outputs reads next to each other, then walks pixels with sums in
// registers.
#include "backend/cpu/conv/grouped_nhwc.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/grouped_nhwc.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_GROUPED_TYPES
#define TRIREME_GROUPED_TYPES
namespace trireme::cpu {

/// One output line of one block of channels: one vector, or two of one group.
struct GroupedLine {
  const float* lines;    // [kernel rows, pixels, window] from the first valid kernel row on, padding included
  int64_t row_stride;    // floats between kernel rows
  int64_t pixel_stride;  // between the pixels that the same tap of neighbouring outputs reads
  int64_t tap_stride;    // between the pixels of neighbouring taps
  const float* weights;  // of the first valid kernel row
  int kh, kw;            // valid kernel rows, taps of a row
  int64_t channels;      // inputs of a group
  const int32_t* spread;  // window channel that lane l reads for input 0 of its group, or null: broadcasts
  float* y;               // [ow, oc] from the block's first channel on
  int64_t ow, oc;
  size_t valid;  // output channels of the block
  const float* bias;
  const float* residual;  // like y, or null
  float lo, hi;
  bool clamps, act_before_residual;
};

/// Pixels of one line of the image on their way into the window: out[pixels, width] from x[.., c].
struct GroupedCopy {
  const float* x;
  int64_t pixels, c;
  size_t valid, width;  // channels there are, and floats between pixels of out
  float* out;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int kW = static_cast<int>(kLanes);

HWY_INLINE VF load_part(const float* p, size_t left) {
  return left >= kLanes ? hn::LoadU(kF, p) : left == 0 ? hn::Zero(kF) : load_n(p, left);
}

HWY_INLINE void store_part(VF v, float* p, size_t left) {
  if (left >= kLanes) {
    hn::StoreU(v, kF, p);
  } else if (left > 0) {
    store_n(v, p, left);
  }
}

/// Outputs one pass of a tile computes: P neighbouring pixels of NV vectors, sums in registers.
template <int P, int NV>
struct Sums {
  VF at[P][NV];
};

HWY_INLINE VF finish(const GroupedLine& t, VF x, int64_t at, size_t left) {
  const VF residual = t.residual ? load_part(t.residual + at, left) : hn::Zero(kF);
  if (t.residual && !t.act_before_residual) x = hn::Add(x, residual);
  if (t.clamps) x = clamp_keep_nan(x, t.lo, t.hi);
  return t.residual && t.act_before_residual ? hn::Add(x, residual) : x;
}

/// How a tile reads its inputs: through a permutation of one vector, or a broadcast.
template <bool kSpread>
struct Reader {
  VI lanes;
  HWY_INLINE explicit Reader(const GroupedLine& t)
      : lanes(kSpread ? hn::LoadU(kI, t.spread) : hn::Zero(kI)) {}
  HWY_INLINE void next() {
    if constexpr (kSpread) lanes = hn::Add(lanes, hn::Set(kI, 1));
  }
  HWY_INLINE VF operator()(const float* pixel, int64_t channel) const {
    if constexpr (kSpread) return hn::TableLookupLanes(hn::LoadU(kF, pixel), hn::IndicesFromVec(kF, lanes));
    return set(pixel[channel]);
  }
};

/// Adds KT neighbouring taps of all channels; S is their distance from output to output, which matters for
/// KT > 1. Advances `w` past their weights [channels, KT, NV, lanes].
template <int P, int NV, int KT, int S, bool kSpread>
HWY_INLINE void add_taps(const GroupedLine& t, const float* x, const float*& w, Sums<P, NV>& sums) {
  Reader<kSpread> read(t);
  for (int64_t i = 0; i < t.channels; ++i, w += KT * NV * kW, read.next()) {
    VF taps[KT][NV];
#pragma GCC unroll 4
    for (int k = 0; k < KT; ++k) {
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) taps[k][v] = hn::LoadU(kF, w + (k * NV + v) * kW);
    }
    if constexpr (KT == 1) {
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        const VF in = read(x + p * t.pixel_stride, i);
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) sums.at[p][v] = hn::MulAdd(in, taps[0][v], sums.at[p][v]);
      }
    } else {
      // Each pixel is brought into the lanes once and serves every output that reads it.
#pragma GCC unroll 32
      for (int j = 0; j < (P - 1) * S + KT; ++j) {
        const VF in = read(x + j * t.tap_stride, i);
#pragma GCC unroll 4
        for (int k = 0; k < KT; ++k) {
          const int p = (j - k) / S;
          if (j < k || (j - k) % S != 0 || p >= P) continue;
#pragma GCC unroll 2
          for (int v = 0; v < NV; ++v) sums.at[p][v] = hn::MulAdd(in, taps[k][v], sums.at[p][v]);
        }
      }
    }
  }
}

/// P outputs from column `first` on. KT is 3 where neighbouring taps share pixels, else 1.
template <int P, int NV, int KT, int S, bool kSpread>
HWY_NOINLINE void tile(const GroupedLine& t, int64_t first) {
  Sums<P, NV> sums;
#pragma GCC unroll 2
  for (int v = 0; v < NV; ++v) {
    const size_t left = t.valid > v * kLanes ? t.valid - v * kLanes : 0;
    const VF bias = t.bias ? load_part(t.bias + v * kW, left) : hn::Zero(kF);
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) sums.at[p][v] = bias;
  }
  const float* w = t.weights;
  const float* line = t.lines + first * t.pixel_stride;
  for (int row = 0; row < t.kh; ++row, line += t.row_stride) {
    int k = 0;
    if constexpr (KT > 1) {
      for (; k + KT <= t.kw; k += KT) add_taps<P, NV, KT, S, kSpread>(t, line + k * t.tap_stride, w, sums);
    }
    for (; k < t.kw; ++k) add_taps<P, NV, 1, 1, kSpread>(t, line + k * t.tap_stride, w, sums);
  }
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      const size_t left = t.valid > v * kLanes ? t.valid - v * kLanes : 0;
      const int64_t at = (first + p) * t.oc + v * kW;
      store_part(finish(t, sums.at[p][v], at, left), t.y + at, left);
    }
  }
}

/// A line in tiles of 14, 7, 4 and 1 pixels, the larger ones as registers allow. The last tile may compute
/// pixels again that one before it computed: the same bits.
template <int NV, int KT, int S, bool kSpread>
void line(const GroupedLine& t) {
  constexpr int kMost = kW >= 16 ? 14 / NV : NV == 1 ? 7 : 4;
  constexpr int kMiddle = kMost > 7 ? 7 : kMost;
  int64_t at = 0;
  while (at < t.ow) {
    const int64_t left = t.ow - at;
    if (left >= kMost || (left > kMiddle && t.ow >= kMost)) {
      at = std::min(at, t.ow - kMost);
      tile<kMost, NV, KT, S, kSpread>(t, at);
      at += kMost;
    } else if (left >= kMiddle || (left > 4 && t.ow >= kMiddle)) {
      at = std::min(at, t.ow - kMiddle);
      tile<kMiddle, NV, KT, S, kSpread>(t, at);
      at += kMiddle;
    } else if (left >= 4 || (left > 1 && t.ow >= 4)) {
      at = std::min(at, t.ow - 4);
      tile<4, NV, KT, S, kSpread>(t, at);
      at += 4;
    } else {
      tile<1, NV, KT, S, kSpread>(t, at);
      ++at;
    }
  }
}

template <int NV, bool kSpread>
void line_of(const GroupedLine& t) {
  if (t.kw >= 3 && t.pixel_stride == t.tap_stride) return line<NV, 3, 1, kSpread>(t);
  if (t.kw >= 3 && t.pixel_stride == 2 * t.tap_stride) return line<NV, 3, 2, kSpread>(t);
  line<NV, 1, 1, kSpread>(t);
}

void grouped_line(const GroupedLine& t) {
  if (t.spread != nullptr) return line_of<1, true>(t);
  t.valid > kLanes ? line_of<2, false>(t) : line_of<1, false>(t);
}

void grouped_copy(const GroupedCopy& g) {
  const float* x = g.x;
  float* out = g.out;
  for (int64_t i = 0; i < g.pixels; ++i, x += g.c, out += g.width) {
    __builtin_prefetch(x + 12 * g.c, 0, 3);  // the processor does not foresee pixels a line or more apart
    for (size_t c = 0; c < g.width; c += kLanes) {
      const size_t left = g.valid > c ? g.valid - c : 0;
      store_part(load_part(x + c, left), out + c, g.width - c);
    }
  }
}

int grouped_lanes() { return kW; }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(grouped_line);
HWY_EXPORT(grouped_copy);
HWY_EXPORT(grouped_lanes);

namespace {

// The lines of a task should stay in most of a first-level cache beside the weights of a kernel row.
constexpr int64_t kAlignment = 32 * 1024;
constexpr int64_t kMostLanes = 16;
constexpr int64_t kMostEmpty = 8;  // lanes of weights for each output

int lanes_now() {
  simd_ready();
  return HWY_DYNAMIC_DISPATCH(grouped_lanes)();
}

/// How channels fall into blocks of one or two vectors.
struct Blocks {
  int64_t cg = 0, og = 0;
  int64_t lanes = 0;
  int64_t together = 1;  // whole groups of a vector
  int64_t parts = 1;     // blocks of a group that takes vectors of its own
  int64_t count = 0;
  int64_t window = 0;  // floats of a pixel that a block reads

  bool spreads() const { return together > 1; }
  /// Vectors of block `b`.
  int64_t vectors(int64_t b) const {
    return spreads() ? 1 : std::min<int64_t>(2, divide_up(og, lanes) - b % parts * 2);
  }
};

Blocks blocks_of(const ConvShape& s, int64_t lanes) {
  Blocks b;
  b.cg = s.c / s.groups;
  b.og = s.oc / s.groups;
  b.lanes = lanes;
  b.together = std::max<int64_t>(1, std::min(lanes / b.og, lanes / b.cg));
  b.parts = b.spreads() ? 1 : divide_up(b.og, 2 * lanes);
  b.count = b.spreads() ? divide_up(s.groups, b.together) : s.groups * b.parts;
  b.window = b.spreads() ? lanes : b.cg;
  return b;
}

/// Taps that are read together because neighbouring outputs share their pixels; as grouped_line chooses.
int taps_together(const ConvShape& s) {
  return s.kw >= 3 && (s.stride_w == s.dilation_w || s.stride_w == 2 * s.dilation_w) ? 3 : 1;
}

/// Floats of the weights of one vector of outputs.
int64_t vector_floats(const ConvShape& s, const Blocks& b) { return s.kh * s.kw * b.cg * b.lanes; }

/// Calls visit(position) for taps and channels of kernel row `row` in the order of the packed weights.
template <class Visit>
void for_taps(const ConvShape& s, const Blocks& b, const Visit& visit) {
  const int together = taps_together(s);
  for (int first = 0; first < s.kw;) {
    const int taps = first + together <= s.kw ? together : 1;
    for (int64_t i = 0; i < b.cg; ++i) {
      for (int k = 0; k < taps; ++k) visit(first + k, i);
    }
    first += taps;
  }
}

/// Output lines of a task and input lines under them.
struct Bands {
  int64_t rows = 1, count = 1;  // output lines (most), bands of an image
  int64_t pixels = 0;           // of a line with the padding that outputs read
  int64_t in_rows = 0;
  size_t bytes = 0;  // of the lines of one task
};

Bands bands_of(const ConvShape& s, const Blocks& b, int threads) {
  Bands g;
  g.pixels = s.window_pixels();
  const int64_t reach = s.window_lines();
  const int64_t line = g.pixels * b.window * static_cast<int64_t>(sizeof(float));
  g.rows = std::clamp<int64_t>((kAlignment / line - reach) / s.stride_h + 1, 1, s.out_h());
  // A team wants several tasks a member; a task should outweigh the microsecond that handing it out costs.
  if (threads > 1) {
    const int64_t row_flop = s.flop() / std::max<int64_t>(1, s.n * s.out_h() * b.count);
    const int64_t least = 1 + 100000 / (row_flop + 1);
    const int64_t fair = s.n * s.out_h() * b.count / (4 * threads);
    g.rows = std::clamp<int64_t>(std::min(g.rows, std::max(least, fair)), 1, s.out_h());
  }
  g.count = divide_up(s.out_h(), g.rows);
  g.in_rows = (g.rows - 1) * s.stride_h + reach;
  g.bytes = align64(static_cast<size_t>(g.in_rows * line));
  return g;
}

class Grouped {
 public:
  Grouped(const GroupedArgs& args, const Bands& bands)
      : a_(args), s_(args.shape), b_(blocks_of(args.shape, args.weights.lanes)), g_(bands) {
    simd_ready();
    line_ = HWY_DYNAMIC_DISPATCH(grouped_line);
    copy_ = HWY_DYNAMIC_DISPATCH(grouped_copy);
    clamps_ = clamp_bounds(a_.epilogue, lo_, hi_);
    for (int64_t l = 0; l < b_.lanes; ++l)
      spread_[l] = l < b_.together * b_.og ? static_cast<int32_t>(l / b_.og * b_.cg) : 0;
  }

  int64_t tasks() const { return s_.n * g_.count * b_.count; }

  void task(int64_t index, float* lines) const {
    const int64_t block = index % b_.count, band = index / b_.count % g_.count;
    const int64_t image = index / b_.count / g_.count;
    const int64_t begin = s_.out_h() * band / g_.count, end = s_.out_h() * (band + 1) / g_.count;
    const Channels at = channels(block);
    copy_lines(image, begin, end, at, lines);
    for (int64_t oh = begin; oh < end; ++oh) run_line(image, oh, begin, at, lines);
  }

 private:
  /// Channels of a block, and where its weights begin.
  struct Channels {
    int64_t in, ins, out, outs, vectors;
    const float* weights;
  };

  Channels channels(int64_t block) const {
    Channels at;
    at.vectors = b_.vectors(block);
    const int64_t each = vector_floats(s_, b_);
    if (b_.spreads()) {
      const int64_t group = block * b_.together, groups = std::min(b_.together, s_.groups - group);
      at.in = group * b_.cg, at.ins = groups * b_.cg;
      at.out = group * b_.og, at.outs = groups * b_.og;
      at.weights = a_.weights.data + block * each;
      return at;
    }
    const int64_t group = block / b_.parts, first = block % b_.parts * 2 * b_.lanes;
    at.in = group * b_.cg, at.ins = b_.cg;
    at.out = group * b_.og + first, at.outs = std::min(b_.og - first, 2 * b_.lanes);
    at.weights = a_.weights.data + (group * divide_up(b_.og, b_.lanes) + block % b_.parts * 2) * each;
    return at;
  }

  void copy_lines(int64_t image, int64_t begin, int64_t end, const Channels& at, float* lines) const {
    const int64_t rows = (end - 1 - begin) * s_.stride_h + int64_t{s_.kh - 1} * s_.dilation_h + 1;
    const int64_t first = begin * s_.stride_h - s_.pad_top, window = b_.window;
    const int64_t left = std::min<int64_t>(s_.pad_left, g_.pixels);
    const int64_t inside = std::clamp<int64_t>(s_.w, 0, g_.pixels - left);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t ih = first + r;
      if (ih < 0 || ih >= s_.h) continue;  // no kernel row of the band that is outside is read
      float* out = lines + r * g_.pixels * window;
      std::fill_n(out, left * window, 0.0f);
      copy_({a_.x + (image * s_.h + ih) * s_.w * s_.c + at.in, inside, s_.c, static_cast<size_t>(at.ins),
             static_cast<size_t>(window), out + left * window});
      std::fill_n(out + (left + inside) * window, (g_.pixels - left - inside) * window, 0.0f);
    }
  }

  void run_line(int64_t image, int64_t oh, int64_t begin, const Channels& at, const float* lines) const {
    const Epilogue& e = a_.epilogue;
    const int64_t ih = oh * s_.stride_h - s_.pad_top, window = b_.window;
    const int64_t top = ih < 0 ? std::min<int64_t>(s_.kh, divide_up(-ih, s_.dilation_h)) : 0;
    const int64_t bottom = ih >= s_.h ? 0 : std::min<int64_t>(s_.kh, divide_up(s_.h - ih, s_.dilation_h));
    const int64_t first = (image * s_.out_h() + oh) * s_.out_w() * s_.oc + at.out;
    const bool later = !clamps_ && e.act_before_residual;  // the residual follows a curved activation
    const float* residual = e.residual ? e.residual + first : nullptr;
    GroupedLine t;
    t.row_stride = s_.dilation_h * g_.pixels * window;
    t.pixel_stride = s_.stride_w * window;
    t.tap_stride = s_.dilation_w * window;
    t.lines = lines + (oh - begin) * s_.stride_h * g_.pixels * window + top * t.row_stride;
    t.weights = at.weights + top * at.vectors * s_.kw * b_.cg * b_.lanes;
    t.kh = static_cast<int>(std::max<int64_t>(0, bottom - top));
    t.kw = s_.kw;
    t.channels = b_.cg;
    t.spread = b_.spreads() ? spread_ : nullptr;
    t.y = a_.y + first;
    t.ow = s_.out_w(), t.oc = s_.oc;
    t.valid = static_cast<size_t>(at.outs);
    t.bias = e.bias ? e.bias + at.out : nullptr;
    t.residual = later ? nullptr : residual;
    t.lo = lo_, t.hi = hi_;
    t.clamps = clamps_ && e.act != Activation::none;
    t.act_before_residual = e.act_before_residual;
    line_(t);
    if (!clamps_)
      dense_kernels(best_isa()).activate({t.y, s_.oc, t.ow, at.outs, later ? residual : nullptr}, e);
  }

  const GroupedArgs& a_;
  const ConvShape& s_;
  const Blocks b_;
  const Bands& g_;
  int32_t spread_[kMostLanes];
  void (*line_)(const GroupedLine&);
  void (*copy_)(const GroupedCopy&);
  bool clamps_;
  float lo_, hi_;
};

}  // namespace

bool grouped_fits(const ConvShape& s) {
  if (s.groups < 2 || s.c < s.groups || s.oc < s.groups) return false;
  if (!copy_is_proportionate(s, s.window_lines() * s.window_pixels())) return false;
  const Blocks b = blocks_of(s, lanes_now());
  const int64_t vectors = b.spreads() ? b.count : s.groups * divide_up(b.og, b.lanes);
  return kMostEmpty * s.oc >= vectors * b.lanes;
}

size_t packed_grouped_bytes(const ConvShape& s) {
  const Blocks b = blocks_of(s, lanes_now());
  const int64_t vectors = b.spreads() ? b.count : s.groups * divide_up(b.og, b.lanes);
  return static_cast<size_t>(vectors * vector_floats(s, b)) * sizeof(float) + 64;
}

PackedGrouped pack_grouped(const ConvShape& s, const float* weights, void* memory) {
  const Blocks b = blocks_of(s, lanes_now());
  float* to = reinterpret_cast<float*>(align64(memory));
  const PackedGrouped packed = {to, static_cast<int>(b.lanes)};
  for (int64_t block = 0; block < b.count; ++block) {
    const int64_t group = b.spreads() ? block * b.together : block / b.parts;
    const int64_t first = b.spreads() ? 0 : block % b.parts * 2 * b.lanes;  // output of the group
    for (int row = 0; row < s.kh; ++row) {
      for_taps(s, b, [&](int tap, int64_t i) {
        for (int64_t l = 0; l < b.vectors(block) * b.lanes; ++l, ++to) {
          const int64_t g = b.spreads() ? group + l / b.og : group;
          const int64_t o = b.spreads() ? l % b.og : first + l;
          const bool is_output = g < s.groups && o < b.og && (!b.spreads() || l < b.together * b.og);
          *to = is_output ? weights[(((g * b.og + o) * b.cg + i) * s.kh + row) * s.kw + tap] : 0.0f;
        }
      });
    }
  }
  return packed;
}

size_t grouped_workspace_bytes(const ConvShape& s, int threads) {
  const Blocks b = blocks_of(s, lanes_now());
  // A band that is cut finer for a team needs less.
  return static_cast<size_t>(threads) * bands_of(s, b, 1).bytes + 64;
}

void grouped_nhwc(const GroupedArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(args.weights.lanes == lanes_now(), "grouped weights were packed for another level");
  if (s.n == 0 || s.oc == 0 || s.out_h() <= 0 || s.out_w() <= 0) return;
  const Bands bands = bands_of(s, blocks_of(s, args.weights.lanes), pool.size());
  const Grouped layer(args, bands);
  char* memory = align64(workspace);
  run_lanes(pool, layer.tasks(), [&](int64_t i, int lane) {
    layer.task(i, reinterpret_cast<float*>(memory + static_cast<size_t>(lane) * bands.bytes));
  });
}

}  // namespace trireme::cpu
#endif
