// The gradient towards x runs the forward kernel over dy; the one towards the weights keeps a kernel row of
// sums in registers while it walks the pixels of a few lines.
#include "backend/cpu/conv_forms/grouped_grad.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv_forms/conv_choice.h"
#include "backend/cpu/dense/gemm_tn.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/simd/simd_level.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv_forms/grouped_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

#ifndef TRIREME_GROUPED_GRAD_TYPES
#define TRIREME_GROUPED_GRAD_TYPES
namespace trireme::cpu {

/// Adds the lines of dy times one kernel row of their inputs to the sums of one vector of outputs.
struct GroupedGradRow {
  const float* x;              // [lines, pixels, window], padding included
  int64_t x_line, pixel, tap;  // floats between lines, between pixels of neighbouring outputs, of taps
  const float* dy;             // [lines, kDyMargin + ow + kDyMargin, lanes], at output 0
  int64_t dy_line, lines, ow;  // dy_line: floats
  float* sums;                 // [kw, channels, lanes]
  const int32_t* spread;       // [channels, lanes]: window channel that a lane reads; null: broadcasts
  int64_t channels;            // inputs of a group
  int kw;
};

/// `pixels` pixels of x[.., c] on their way to out[pixels, width]: `valid` channels, then zeros.
struct GroupedGradCopy {
  const float* x;
  int64_t pixels, c;
  size_t valid, width;
  float* out;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int kW = static_cast<int>(kLanes);
constexpr int kWide = 3;                         // taps that neighbouring outputs share
constexpr int kMostChannels = kW >= 16 ? 8 : 3;  // of kWide taps each: as many sums as registers hold

/// Inputs of one channel in the lanes of their groups' outputs.
template <bool kSpread>
HWY_INLINE VF input(const GroupedGradRow& r, const float* pixel, int64_t channel) {
  if constexpr (kSpread) {
    const auto lanes = hn::IndicesFromVec(kF, hn::LoadU(kI, r.spread + channel * kW));
    return hn::TableLookupLanes(hn::LoadU(kF, pixel), lanes);
  }
  return set(pixel[channel]);
}

/// Taps [first, first + KT) of channels [channel, channel + C). kShared: the pixels of neighbouring outputs
/// are those of neighbouring taps, so that each is brought into the lanes once.
template <int KT, int C, bool kSpread, bool kShared>
HWY_NOINLINE void add_taps(const GroupedGradRow& r, int first, int64_t channel) {
  VF sums[KT][C];
#pragma GCC unroll 4
  for (int t = 0; t < KT; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < C; ++i)
      sums[t][i] = hn::LoadU(kF, r.sums + ((first + t) * r.channels + channel + i) * kW);
  }
  for (int64_t line = 0; line < r.lines; ++line) {
    const float* x = r.x + line * r.x_line + first * r.tap;
    const float* dy = r.dy + line * r.dy_line;
    const int64_t steps = kShared ? r.ow + KT - 1 : r.ow;
    for (int64_t j = 0; j < steps; ++j, x += r.pixel) {
      VF g[KT];
#pragma GCC unroll 4
      for (int t = 0; t < (kShared ? KT : 1); ++t) g[t] = hn::LoadU(kF, dy + (j - t) * kW);
#pragma GCC unroll 8
      for (int i = 0; i < C; ++i) {
        VF in = input<kSpread>(r, x, channel + i);
#pragma GCC unroll 4
        for (int t = 0; t < KT; ++t) {
          if (!kShared && t > 0) in = input<kSpread>(r, x + t * r.tap, channel + i);
          sums[t][i] = hn::MulAdd(in, g[kShared ? t : 0], sums[t][i]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < KT; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < C; ++i)
      hn::StoreU(sums[t][i], kF, r.sums + ((first + t) * r.channels + channel + i) * kW);
  }
}

template <int KT, bool kSpread, bool kShared>
void add_channels(const GroupedGradRow& r, int first) {
  int64_t i = 0;
  for (; i + kMostChannels <= r.channels; i += kMostChannels)
    add_taps<KT, kMostChannels, kSpread, kShared>(r, first, i);
  if constexpr (kMostChannels > 4) {
    for (; i + 4 <= r.channels; i += 4) add_taps<KT, 4, kSpread, kShared>(r, first, i);
  }
  for (; i + 2 <= r.channels; i += 2) add_taps<KT, 2, kSpread, kShared>(r, first, i);
  for (; i < r.channels; ++i) add_taps<KT, 1, kSpread, kShared>(r, first, i);
}

template <bool kSpread>
void add_row(const GroupedGradRow& r) {
  int first = 0;
  for (; first + kWide <= r.kw; first += kWide)
    r.pixel == r.tap ? add_channels<kWide, kSpread, true>(r, first)
                     : add_channels<kWide, kSpread, false>(r, first);
  for (; first < r.kw; ++first) add_channels<1, kSpread, false>(r, first);
}

void grouped_grad_row(const GroupedGradRow& r) { r.spread != nullptr ? add_row<true>(r) : add_row<false>(r); }

void grouped_grad_copy(const GroupedGradCopy& g) {
  const float* x = g.x;
  float* out = g.out;
  for (int64_t i = 0; i < g.pixels; ++i, x += g.c, out += g.width) {
    __builtin_prefetch(x + 12 * g.c, 0, 3);  // the processor does not foresee pixels a line or more apart
    size_t at = 0;
    for (; at + kLanes <= g.valid; at += kLanes) hn::StoreU(hn::LoadU(kF, x + at), kF, out + at);
    if (at < g.valid) {
      const VF last = load_n(x + at, g.valid - at);
      at + kLanes <= g.width ? hn::StoreU(last, kF, out + at) : store_n(last, out + at, g.width - at);
      at += kLanes;
    }
    for (; at < g.width; ++at) out[at] = 0;
  }
}

int grouped_grad_lanes() { return kW; }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(grouped_grad_row);
HWY_EXPORT(grouped_grad_copy);
HWY_EXPORT(grouped_grad_lanes);

namespace {

constexpr int64_t kTasks = 32;             // keep any team we run busy
constexpr int64_t kDyMargin = 2;           // pixels of zeros beside a line of dy: taps read together less one
constexpr int64_t kBandBytes = 48 * 1024;  // lines of x and dy that a task walks: a first-level cache
constexpr int64_t kMostOutputs = 96;       // of a group: more fill the tiles of products
constexpr int64_t kMostEmpty = 8;          // lanes for each output

int64_t lanes_now() {
  simd_ready();
  return HWY_DYNAMIC_DISPATCH(grouped_grad_lanes)();
}

/// The weights of a view in ONNX order [groups * columns, depth, taps_h, taps_w].
void unpack_view(const WeightView& v, float* to) {
  const int64_t points = int64_t{v.kh} * v.kw;
  for (int64_t g = 0; g < v.groups; ++g) {
    for (int64_t n = 0; n < v.columns; ++n) {
      for (int64_t d = 0; d < v.depth; ++d) {
        const int64_t pair =
            v.backward ? (g * v.depth + d) * v.columns + n : (g * v.columns + n) * v.depth + d;
        for (int tap = 0; tap < v.taps(); ++tap, ++to) *to = v.data[pair * points + v.source_tap(tap)];
      }
    }
  }
}

int64_t view_floats(const WeightView& v) { return v.groups * v.columns * v.depth * v.taps(); }

/// The convolution over dy of a phase, or of the whole gradient at stride 1, by vectors of several groups.
size_t over_dy_bytes(const ConvShape& over_dy, const WeightView& view, int threads) {
  return align64(static_cast<size_t>(view_floats(view)) * sizeof(float)) +
         align64(packed_grouped_bytes(over_dy)) + grouped_workspace_bytes(over_dy, threads) + 64;
}

void run_over_dy(const BackwardPart& part, void* workspace, base::ThreadPool& pool) {
  float* turned = reinterpret_cast<float*>(align64(workspace));
  char* packed = align64(turned + view_floats(part.view));
  unpack_view(part.view, turned);
  GroupedArgs args{.shape = part.over_dy, .x = part.dy, .y = part.rows, .epilogue = {}};
  args.weights = pack_grouped(part.over_dy, turned, packed);
  grouped_nhwc(args, packed + align64(packed_grouped_bytes(part.over_dy)), pool);
}

/// How the sums of dw fall into vectors of outputs, and the pixels into tasks.
struct Cut {
  int64_t cg = 0, og = 0, lanes = 0;
  int64_t together = 1;  // whole groups of a vector
  int64_t parts = 1;     // vectors of a group that takes its own
  int64_t vectors = 0;
  int64_t window = 0;                         // floats of a pixel of x that a vector reads
  int64_t pixels = 0, pieces = 1, lines = 1;  // of a line with its padding; of the work; of dy in a band

  bool spreads() const { return together > 1; }
  int64_t vector_floats(const ConvShape& s) const { return s.kh * s.kw * cg * lanes; }
};

int64_t dy_line_floats(const ConvShape& s, const Cut& c) { return (s.out_w() + 2 * kDyMargin) * c.lanes; }

int64_t x_lines(const ConvShape& s, const Cut& c) {
  return (c.lines - 1) * s.stride_h + int64_t{s.kh - 1} * s.dilation_h + 1;
}

int64_t band_floats(const ConvShape& s, const Cut& c) {
  return x_lines(s, c) * c.pixels * c.window + c.lines * dy_line_floats(s, c) + 2 * c.lanes;
}

Cut cut(const ConvShape& s, int64_t lanes) {
  Cut c{.cg = s.c / s.groups, .og = s.oc / s.groups, .lanes = lanes};
  c.together = std::max<int64_t>(1, std::min(lanes / c.og, lanes / c.cg));
  c.parts = c.spreads() ? 1 : divide_up(c.og, lanes);
  c.vectors = c.spreads() ? divide_up(s.groups, c.together) : s.groups * c.parts;
  c.window = c.spreads() ? lanes : c.cg;
  c.pixels = (s.out_w() - 1) * s.stride_w + int64_t{s.kw - 1} * s.dilation_w + 1;
  c.pieces = std::clamp<int64_t>(divide_up(kTasks, c.vectors), 1, std::max<int64_t>(1, s.n));
  while (c.lines < s.out_h()) {
    Cut more = c;
    ++more.lines;
    if (band_floats(s, more) * static_cast<int64_t>(sizeof(float)) > kBandBytes) break;
    c = more;
  }
  return c;
}

class GroupedGradW {
 public:
  GroupedGradW(const ConvGradWArgs& args, const Cut& cut, float* sums)
      : a_(args), s_(args.shape), c_(cut), sums_(sums) {
    row_ = HWY_DYNAMIC_DISPATCH(grouped_grad_row);
    copy_ = HWY_DYNAMIC_DISPATCH(grouped_grad_copy);
    if (!c_.spreads()) return;
    spread_.resize(static_cast<size_t>(c_.cg * c_.lanes));
    for (int64_t i = 0; i < c_.cg; ++i) {
      for (int64_t l = 0; l < c_.together * c_.og; ++l)
        spread_[static_cast<size_t>(i * c_.lanes + l)] = static_cast<int32_t>(l / c_.og * c_.cg + i);
    }
  }

  int64_t tasks() const { return c_.pieces * c_.vectors; }

  void task(int64_t index, float* memory) const {
    const int64_t piece = index / c_.vectors;
    const Channels at = channels(index % c_.vectors);
    float* sums = sums_ + index * c_.vector_floats(s_);
    std::fill_n(sums, c_.vector_floats(s_), 0.0f);
    for (int64_t n = s_.n * piece / c_.pieces; n < s_.n * (piece + 1) / c_.pieces; ++n) {
      for (int64_t oh = 0; oh < s_.out_h(); oh += c_.lines)
        add_band({n, oh, std::min(s_.out_h(), oh + c_.lines)}, at, memory, sums);
    }
  }

  /// Adds up the pieces of a vector and writes its weights in ONNX order.
  void finish(int64_t vector) const {
    const int64_t size = c_.vector_floats(s_), taps = int64_t{s_.kh} * s_.kw;
    sum_tree(sums_, c_.pieces, c_.vectors * size, vector * size, (vector + 1) * size);
    const float* sums = sums_ + vector * size;  // [taps, cg, lanes]
    const Channels at = channels(vector);
    for (int64_t l = 0; l < at.outs; ++l) {
      float* dw = a_.dw + (at.out + l) * c_.cg * taps;
      for (int64_t i = 0; i < c_.cg; ++i) {
        for (int64_t t = 0; t < taps; ++t) dw[i * taps + t] = sums[(t * c_.cg + i) * c_.lanes + l];
      }
    }
  }

 private:
  /// The channels of x and of dy behind a vector of sums.
  struct Channels {
    int64_t in, ins, out, outs;
  };

  Channels channels(int64_t vector) const {
    if (c_.spreads()) {
      const int64_t group = vector * c_.together, groups = std::min(c_.together, s_.groups - group);
      return {group * c_.cg, groups * c_.cg, group * c_.og, groups * c_.og};
    }
    const int64_t group = vector / c_.parts, first = vector % c_.parts * c_.lanes;
    return {group * c_.cg, c_.cg, group * c_.og + first, std::min(c_.lanes, c_.og - first)};
  }

  /// Lines [begin, end) of dy of image n.
  struct Band {
    int64_t n, begin, end;
  };

  void add_band(const Band& band, const Channels& at, float* memory, float* sums) const {
    const auto [n, begin, end] = band;
    const int64_t x_line = c_.pixels * c_.window, dy_line = dy_line_floats(s_, c_);
    float* dy = memory;
    float* x = dy + c_.lines * dy_line;
    for (int64_t oh = begin; oh < end; ++oh) copy_dy(n, oh, at, dy + (oh - begin) * dy_line);
    const int64_t top = begin * s_.stride_h - s_.pad_top;
    const int64_t rows = (end - 1 - begin) * s_.stride_h + int64_t{s_.kh - 1} * s_.dilation_h + 1;
    for (int64_t i = 0; i < rows; ++i) {
      if (top + i >= 0 && top + i < s_.h) copy_x(n, top + i, at, x + i * x_line);
    }
    for (int k = 0; k < s_.kh; ++k) {
      // Lines of dy whose input line for this kernel row lies in the image.
      const int64_t down = int64_t{k} * s_.dilation_h - s_.pad_top;
      const int64_t first = std::max(begin, down >= 0 ? 0 : divide_up(-down, s_.stride_h));
      const int64_t last = std::min(end, s_.h <= down ? 0 : divide_up(s_.h - down, s_.stride_h));
      if (first >= last) continue;
      GroupedGradRow r{.x = x + (first * s_.stride_h + down - top) * x_line};
      r.x_line = s_.stride_h * x_line;
      r.pixel = s_.stride_w * c_.window;
      r.tap = s_.dilation_w * c_.window;
      r.dy = dy + (first - begin) * dy_line + kDyMargin * c_.lanes;
      r.dy_line = dy_line;
      r.lines = last - first;
      r.ow = s_.out_w();
      r.sums = sums + k * s_.kw * c_.cg * c_.lanes;
      r.spread = c_.spreads() ? spread_.data() : nullptr;
      r.channels = c_.cg;
      r.kw = s_.kw;
      row_(r);
    }
  }

  void copy_dy(int64_t n, int64_t oh, const Channels& at, float* to) const {
    std::fill_n(to, kDyMargin * c_.lanes, 0.0f);
    to += kDyMargin * c_.lanes;
    const float* from = a_.dy + (n * s_.out_h() + oh) * s_.out_w() * s_.oc + at.out;
    copy_({from, s_.out_w(), s_.oc, static_cast<size_t>(at.outs), static_cast<size_t>(c_.lanes), to});
    std::fill_n(to + s_.out_w() * c_.lanes, kDyMargin * c_.lanes, 0.0f);
  }

  void copy_x(int64_t n, int64_t ih, const Channels& at, float* to) const {
    const int64_t first = std::clamp<int64_t>(s_.pad_left, 0, c_.pixels);
    const int64_t last = std::clamp<int64_t>(s_.pad_left + s_.w, first, c_.pixels);
    std::fill_n(to, first * c_.window, 0.0f);
    const float* from = a_.x + ((n * s_.h + ih) * s_.w + first - s_.pad_left) * s_.c + at.in;
    copy_({from, last - first, s_.c, static_cast<size_t>(at.ins), static_cast<size_t>(c_.window),
           to + first * c_.window});
    std::fill_n(to + last * c_.window, (c_.pixels - last) * c_.window, 0.0f);
  }

  const ConvGradWArgs& a_;
  const ConvShape& s_;
  const Cut& c_;
  float* sums_;  // [pieces, vectors, kh, kw, cg, lanes]
  std::vector<int32_t> spread_;
  void (*row_)(const GroupedGradRow&);
  void (*copy_)(const GroupedGradCopy&);
};

}  // namespace

bool grouped_grad_x_pays(const ConvShape& s) {
  if (s.groups < 2 || s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0) return false;
  bool pays = true;
  if (s.stride_h == 1 && s.stride_w == 1) {
    const ConvShape b = backward_shape(s);
    return grouped_pays(b) && b.pad_top >= 0 && b.pad_left >= 0 && b.pad_bottom >= 0 && b.pad_right >= 0;
  }
  if (s.dilation_h != 1 || s.dilation_w != 1 || !conv_grad_x_has_few_phases(s)) return false;
  for_backward_parts(s, [&](const BackwardPart& p) {
    const ConvShape& b = p.over_dy;
    pays &= grouped_fits(b) && b.oc / b.groups <= kMostOutputs && b.pad_top >= 0 && b.pad_left >= 0 &&
            b.pad_bottom >= 0 && b.pad_right >= 0;
  });
  return pays;
}

size_t grouped_grad_x_bytes(const ConvShape& s, int threads) {
  if (s.stride_h == 1 && s.stride_w == 1)
    return over_dy_bytes(backward_shape(s), backward_view(s, nullptr), threads) + 64;
  return conv_grad_x_parts_bytes(s, threads, over_dy_bytes);
}

void grouped_grad_x(const ConvGradXArgs& a, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  if (s.stride_h == 1 && s.stride_w == 1)
    return run_over_dy({backward_shape(s), backward_view(s, a.weights), a.dy, a.dx}, workspace, pool);
  conv_grad_x_parts(a, workspace, pool, run_over_dy);
}

bool grouped_grad_w_pays(const ConvShape& s) {
  if (s.groups < 2 || s.oc / s.groups > kMostOutputs || s.n * s.out_h() * s.out_w() == 0) return false;
  const Cut c = cut(s, lanes_now());
  // A band of one line stays in the second-level cache at least.
  return kMostEmpty * s.oc >= c.vectors * c.lanes && band_floats(s, c) <= 8 * kBandBytes;
}

size_t grouped_grad_w_bytes(const ConvShape& s, int threads) {
  const Cut c = cut(s, lanes_now());
  const int64_t floats = c.pieces * c.vectors * c.vector_floats(s) + threads * band_floats(s, c);
  return static_cast<size_t>(floats) * sizeof(float) + 128;
}

void grouped_grad_w(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const Cut c = cut(s, lanes_now());
  float* sums = reinterpret_cast<float*>(align64(workspace));
  float* bands = sums + c.pieces * c.vectors * c.vector_floats(s);
  const GroupedGradW layer(args, c, sums);
  run_lanes(pool, layer.tasks(),
            [&](int64_t i, int lane) { layer.task(i, bands + lane * band_floats(s, c)); });
  pool.run(c.vectors, [&](int64_t vector) { layer.finish(vector); });
}

}  // namespace trireme::cpu
#endif
