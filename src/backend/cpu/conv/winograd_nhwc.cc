// Blocks of tiles go through transform, one product per point, and back, inside a task and its share of
// cache.
#include "backend/cpu/conv/winograd_nhwc.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/conv/conv_pack.h"
#include "backend/cpu/dense/point_products.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/winograd_nhwc.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/conv/winograd_points.inc"

#ifndef TRIREME_WINOGRAD_TILES
#define TRIREME_WINOGRAD_TILES
namespace trireme::cpu {

/// One tile's pixels on their way to V.
struct WinogradGather {
  const float* const* pixels;  // [side * side], zeros for those outside the image
  int64_t channels;
  float* out;  // point p at out + p * point_stride
  int64_t point_stride;
  const uint8_t* const* which = nullptr;  // of windows: pixels and which are [windows * windows]
};

/// One tile's products on their way to y.
struct WinogradScatter {
  const float* in;  // point p at in + p * point_stride
  int64_t point_stride;
  int64_t channels;
  float* y;               // first output pixel
  const float* residual;  // like y, or null
  const float* bias;      // [channels] or null
  int64_t pixel, line;    // floats between neighbouring outputs
  int rows, columns;      // outputs inside the image
  float lo, hi;
  bool clamps, act_before_residual;
  const float* gate;  // like y, or null
  uint8_t* which;     // of windows, or null: y, which, pixel and line are of the windows
};

/// Windows that a tile of `side` input pixels reaches into when it begins inside one.
constexpr int windows_of(int side) { return side / 2 + 1; }

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class Tile>
HWY_INLINE void gather_tile(const WinogradGather& g) {
  constexpr int kSide = Tile::kSide;
  for (int64_t c = 0; c < g.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(g.channels - c);
    VF middle[kSide][kSide];
    for (int j = 0; j < kSide; ++j) {
      VF d[kSide], o[kSide];
      for (int i = 0; i < kSide; ++i) d[i] = load_some(g.pixels[i * kSide + j] + c, left);
      Tile::input(d, o);
      for (int i = 0; i < kSide; ++i) middle[i][j] = o[i];
    }
    for (int i = 0; i < kSide; ++i) {
      VF o[kSide];
      Tile::input(middle[i], o);
      for (int j = 0; j < kSide; ++j) store_some(o[j], g.out + (i * kSide + j) * g.point_stride + c, left);
    }
  }
}

/// The same from windows, the first of which the tile shares from its second line (column) on if kLine
/// (kColumn) is 1.
template <class Tile, int kLine, int kColumn>
HWY_INLINE void gather_windows(const WinogradGather& g) {
  constexpr int kSide = Tile::kSide, kWindows = windows_of(kSide);
  for (int64_t c = 0; c < g.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(g.channels - c);
    VF middle[kSide][kSide];
    for (int j = 0; j < kSide; ++j) {
      VF d[kSide], o[kSide];
      for (int i = 0; i < kSide; ++i) {
        const int window = (i + kLine) / 2 * kWindows + (j + kColumn) / 2;
        const int place = (i + kLine) % 2 * 2 + (j + kColumn) % 2;
        d[i] =
            window_pixel(load_some(g.pixels[window] + c, left), load_which(g.which[window] + c, left), place);
      }
      Tile::input(d, o);
      for (int i = 0; i < kSide; ++i) middle[i][j] = o[i];
    }
    for (int i = 0; i < kSide; ++i) {
      VF o[kSide];
      Tile::input(middle[i], o);
      for (int j = 0; j < kSide; ++j) store_some(o[j], g.out + (i * kSide + j) * g.point_stride + c, left);
    }
  }
}

HWY_INLINE VF finish(const WinogradScatter& s, VF x, int64_t at, size_t left) {
  const VF residual = s.residual ? load_some(s.residual + at, left) : set(0.0f);
  if (s.residual && !s.act_before_residual) x = hn::Add(x, residual);
  if (s.clamps) x = clamp_keep_nan(x, s.lo, s.hi);
  if (s.gate) x = hn::IfThenElseZero(hn::Gt(load_some(s.gate + at, left), set(0.0f)), x);
  return s.residual && s.act_before_residual ? hn::Add(x, residual) : x;
}

template <class Tile>
HWY_INLINE void scatter_tile(const WinogradScatter& s) {
  constexpr int kSide = Tile::kSide, kOut = Tile::kOut;
  for (int64_t c = 0; c < s.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(s.channels - c);
    VF middle[kOut][kSide];
    for (int j = 0; j < kSide; ++j) {
      VF m[kSide], o[kOut];
      for (int i = 0; i < kSide; ++i) m[i] = load_some(s.in + (i * kSide + j) * s.point_stride + c, left);
      Tile::output(m, o);
      for (int i = 0; i < kOut; ++i) middle[i][j] = o[i];
    }
    const VF bias = s.bias ? load_some(s.bias + c, left) : set(0.0f);
    for (int i = 0; i < s.rows; ++i) {
      VF o[kOut];
      Tile::output(middle[i], o);
      for (int j = 0; j < s.columns; ++j) {
        const int64_t at = i * s.line + j * s.pixel + c;
        store_some(finish(s, hn::Add(o[j], bias), at, left), s.y + at, left);
      }
    }
  }
}

/// The largest of each window's four outputs, and where it stood if that is asked for.
HWY_INLINE void store_maximum(const WinogradScatter& s, const VF* taps, int64_t at, size_t left) {
  VF best = taps[0], place = set(0.0f);
  for (int i = 1; i < 4; ++i) {
    const MF wins = hn::Or(hn::Gt(taps[i], best), not_equal(taps[i], taps[i]));
    best = hn::IfThenElse(wins, taps[i], best);
    place = hn::IfThenElse(wins, set(static_cast<float>(i)), place);
  }
  store_some(best, s.y + at, left);
  if (s.which == nullptr) return;
  if (s.clamps) place = hn::IfThenElse(hn::Gt(best, set(0.0f)), place, set(float{kNoMaximum}));
  store_which(place, s.which + at, left);
}

template <class Tile>
HWY_INLINE void scatter_windows(const WinogradScatter& s) {
  constexpr int kSide = Tile::kSide, kOut = Tile::kOut;
  for (int64_t c = 0; c < s.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(s.channels - c);
    VF middle[kOut][kSide];
    for (int j = 0; j < kSide; ++j) {
      VF m[kSide], o[kOut];
      for (int i = 0; i < kSide; ++i) m[i] = load_some(s.in + (i * kSide + j) * s.point_stride + c, left);
      Tile::output(m, o);
      for (int i = 0; i < kOut; ++i) middle[i][j] = o[i];
    }
    const VF bias = s.bias ? load_some(s.bias + c, left) : set(0.0f);
    for (int i = 0; i + 1 < s.rows; i += 2) {
      VF upper[kOut], lower[kOut];
      Tile::output(middle[i], upper);
      Tile::output(middle[i + 1], lower);
      for (int j = 0; j + 1 < s.columns; j += 2) {
        VF taps[4] = {upper[j], upper[j + 1], lower[j], lower[j + 1]};
        for (VF& tap : taps) tap = finish(s, hn::Add(tap, bias), 0, left);
        store_maximum(s, taps, i / 2 * s.line + j / 2 * s.pixel + c, left);
      }
    }
  }
}

void gather_two(const WinogradGather& g) { gather_tile<Two>(g); }
void gather_windows_00(const WinogradGather& g) { gather_windows<Four, 0, 0>(g); }
void gather_windows_01(const WinogradGather& g) { gather_windows<Four, 0, 1>(g); }
void gather_windows_10(const WinogradGather& g) { gather_windows<Four, 1, 0>(g); }
void gather_windows_11(const WinogradGather& g) { gather_windows<Four, 1, 1>(g); }
void scatter_windows_two(const WinogradScatter& s) { scatter_windows<Two>(s); }
void scatter_windows_four(const WinogradScatter& s) { scatter_windows<Four>(s); }
void gather_four(const WinogradGather& g) { gather_tile<Four>(g); }
void scatter_two(const WinogradScatter& s) { scatter_tile<Two>(s); }
void scatter_four(const WinogradScatter& s) { scatter_tile<Four>(s); }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(gather_two);
HWY_EXPORT(gather_four);
HWY_EXPORT(scatter_two);
HWY_EXPORT(scatter_four);
HWY_EXPORT(gather_windows_00);
HWY_EXPORT(gather_windows_01);
HWY_EXPORT(gather_windows_10);
HWY_EXPORT(gather_windows_11);
HWY_EXPORT(scatter_windows_two);
HWY_EXPORT(scatter_windows_four);

namespace {

// V and M of a task should stay in most of a 1 MiB second-level cache.
constexpr int64_t kBlockBytes = 640 * 1024;
// Below this many rows, two register tiles of the widest vectors, a product spends its time fetching weights.
constexpr int64_t kLeastTiles = 26;

/// How a layer is cut: blocks of tiles x parts of the output channels.
struct Grid {
  int out = 0, side = 0, points = 0;
  int64_t tiles_h = 0, tiles_w = 0, tiles = 0;  // of a phase of a dilated image; in all
  int64_t blocks = 0, block_tiles = 0;          // block_tiles is the largest
  int64_t parts = 0, part = 0;                  // output channels per part, whole panels
  int64_t tasks() const { return blocks * parts; }
};

/// Cycles of the longest member under a grid: transforms (once for each part) and products beside the stream
/// of weights, which a member reads again for a block unless its part of them stays in the second-level
/// cache.
double grid_cycles(const Grid& g, const ConvShape& s, int64_t panel, int threads) {
  constexpr double kTransform = 0.25,
                   kWeightBytes = 6;  // cycles an element, bytes a cycle of one of four cores
  constexpr double kKept = 400 * 1024;
  const double rows = static_cast<double>(g.block_tiles), points = g.points;
  const double c = static_cast<double>(s.c), part = static_cast<double>(std::min(g.part, s.oc));
  const int64_t tasks = divide_up(g.tasks(), threads);
  const double weights = 4 * points * c * part;
  const double reads = static_cast<double>(weights <= kKept ? divide_up(tasks, g.blocks) : tasks);
  const double transforms = kTransform * points * rows * (c + part);
  const double products = points * std::max(rows, 8.0) * static_cast<double>(divide_up(g.part, panel)) * c;
  // 0.3 of a task is lost in the last round on average; what overlaps does so in part.
  const double computing = (static_cast<double>(tasks) + 0.3) * (transforms + products + 2000);
  const double reading = reads * weights / kWeightBytes;
  return std::max(computing, reading) + 0.3 * std::min(computing, reading);
}

/// V and M of a task.
int64_t block_bytes(const Grid& g, const ConvShape& s) {
  return g.points * g.block_tiles * (s.c + std::min(g.part, s.oc)) * static_cast<int64_t>(sizeof(float));
}

/// The grid of a team: blocks of tiles, and parts of the output channels that repeat the input transform.
/// Grids are tried whose tasks come out even over the team, from one a member on; past 24 nothing waits for
/// long.
void share_out(Grid& g, const ConvShape& s, int64_t panel, int threads) {
  constexpr int64_t kMostBytes = 900 * 1024, kMostRounds = 24, kOneTile = 14;
  const int64_t panels = divide_up(s.oc, panel);
  Grid best = g;
  double least = 0;
  for (int64_t parts = 1; parts <= panels && parts <= 2 * threads; parts *= 2) {
    for (int64_t rounds = 1; rounds <= kMostRounds; ++rounds) {
      Grid tried = g;
      tried.blocks = std::max<int64_t>(1, rounds * threads / parts);
      if (tried.blocks > g.tiles) break;
      tried.block_tiles = divide_up(g.tiles, tried.blocks);
      tried.part = divide_up(panels, parts) * panel;
      tried.parts = divide_up(s.oc, tried.part);
      if (tried.block_tiles > kOneTile && block_bytes(tried, s) > kMostBytes) continue;
      const double cycles = grid_cycles(tried, s, panel, threads);
      if (least != 0 && cycles >= least) continue;
      least = cycles;
      best = tried;
    }
  }
  g = best;
}

Grid cut(const ConvShape& s, WinogradTile tile, int threads, int64_t panel) {
  Grid g;
  g.out = static_cast<int>(tile);
  g.side = g.out + 2;
  g.points = g.side * g.side;
  g.tiles_h = divide_up(divide_up(s.out_h(), s.dilation_h), g.out);
  g.tiles_w = divide_up(divide_up(s.out_w(), s.dilation_w), g.out);
  g.tiles = s.n * s.dilation_h * s.dilation_w * g.tiles_h * g.tiles_w;
  g.parts = 1;
  g.part = divide_up(s.oc, panel) * panel;
  const int64_t tile_bytes = g.points * (s.c + s.oc) * static_cast<int64_t>(sizeof(float));
  g.blocks = std::max<int64_t>(1, divide_up(g.tiles, std::max(kLeastTiles, kBlockBytes / tile_bytes)));
  g.block_tiles = divide_up(g.tiles, g.blocks);
  if (threads > 1) share_out(g, s, panel, threads);
  return g;
}

PointLane lane_of(const Grid& g, const ConvShape& s) {
  return point_lane({g.points, g.block_tiles, s.c, std::min(g.part, s.oc)});
}

class Winograd {
 public:
  Winograd(const WinogradArgs& args, const Grid& grid, const float* zeros)
      : a_(args), s_(args.shape), g_(grid), zeros_(zeros), lane_(lane_of(grid, args.shape)) {
    simd_ready();
    x_pixel_ = a_.x_pixel > 0 ? a_.x_pixel : s_.c;
    y_pixel_ = a_.y_pixel > 0 ? a_.y_pixel : s_.oc;
    const bool two = g_.out == 2;
    gather_ = two ? HWY_DYNAMIC_DISPATCH(gather_two) : HWY_DYNAMIC_DISPATCH(gather_four);
    scatter_ = two ? HWY_DYNAMIC_DISPATCH(scatter_two) : HWY_DYNAMIC_DISPATCH(scatter_four);
    if (a_.takes_maxima)
      scatter_ = two ? HWY_DYNAMIC_DISPATCH(scatter_windows_two) : HWY_DYNAMIC_DISPATCH(scatter_windows_four);
    if (a_.x_which != nullptr) gather_ = gather_of_windows();
    clamps_ = clamp_bounds(a_.epilogue, lo_, hi_);
  }

  void task(int64_t index, char* memory) const {
    // Blocks of one part follow each other: their weights stay with the member.
    const int64_t block = index % g_.blocks, column = index / g_.blocks * g_.part;
    const int64_t begin = g_.tiles * block / g_.blocks, end = g_.tiles * (block + 1) / g_.blocks;
    const int64_t count = end - begin, part = std::min(g_.part, s_.oc - column);
    float* v = reinterpret_cast<float*>(memory);            // [points, count, c] and a line
    float* m = reinterpret_cast<float*>(memory + lane_.v);  // [points, count, part] and a line
    for (int64_t t = 0; t < count; ++t) {
      float* out = v + t * s_.c;
      a_.x_which == nullptr ? gather(begin + t, out, point_floats(count, s_.c))
                            : gather_from_windows(begin + t, out, point_floats(count, s_.c));
    }
    multiply(count, column, part, memory);
    for (int64_t t = 0; t < count; ++t)
      scatter(begin + t, column, part, {m + t * part, point_floats(count, part)});
  }

 private:
  struct Products {
    const float* in;
    int64_t point_stride;
  };

  /// The first output pixel of a tile.
  struct Spot {
    int64_t image, h, w;
  };

  /// Tiles go through an image phase by phase: the outputs of one remainder modulo the dilations read pixels
  /// of one remainder only, as a dense convolution does.
  Spot spot(int64_t tile) const {
    int64_t rest = tile;
    const auto next = [&rest](int64_t count) {
      const int64_t at = rest % count;
      rest /= count;
      return at;
    };
    const int64_t column = next(g_.tiles_w), line = next(g_.tiles_h);
    const int64_t phase_w = next(s_.dilation_w), phase_h = next(s_.dilation_h);
    return {rest, phase_h + line * g_.out * s_.dilation_h, phase_w + column * g_.out * s_.dilation_w};
  }

  /// Outputs of a tile inside the image along one axis; none where a phase is empty.
  int outputs(int64_t extent, int64_t first, int dilation) const {
    return static_cast<int>(std::clamp<int64_t>(divide_up(extent - first, dilation), 0, g_.out));
  }

  void gather(int64_t tile, float* out, int64_t point_stride) const {
    const Spot at = spot(tile);
    std::array<const float*, 36> pixels;
    for (int i = 0; i < g_.side; ++i) {
      const int64_t h = at.h - s_.pad_top + int64_t{i} * s_.dilation_h;
      for (int j = 0; j < g_.side; ++j) {
        const int64_t w = at.w - s_.pad_left + int64_t{j} * s_.dilation_w;
        const bool inside = h >= 0 && h < s_.h && w >= 0 && w < s_.w;
        pixels[static_cast<size_t>(i * g_.side + j)] =
            inside ? a_.x + ((at.image * s_.h + h) * s_.w + w) * x_pixel_ : zeros_;
        // The next tile's new pixels.
        if (j >= g_.side - g_.out) {
          const float* next = pixels[static_cast<size_t>(i * g_.side + j)] + 2 * g_.out * x_pixel_;
          for (int64_t c = 0; c < s_.c; c += 16) __builtin_prefetch(next + c, 0, 2);
        }
      }
    }
    gather_({pixels.data(), s_.c, out, point_stride});
  }

  /// Tiles begin at multiples of four less the padding, so all begin at the same places of windows.
  void (*gather_of_windows() const)(const WinogradGather&) {
    const bool line = s_.pad_top % 2 != 0, column = s_.pad_left % 2 != 0;
    if (line)
      return column ? HWY_DYNAMIC_DISPATCH(gather_windows_11) : HWY_DYNAMIC_DISPATCH(gather_windows_10);
    return column ? HWY_DYNAMIC_DISPATCH(gather_windows_01) : HWY_DYNAMIC_DISPATCH(gather_windows_00);
  }

  void gather_from_windows(int64_t tile, float* out, int64_t point_stride) const {
    const Spot at = spot(tile);
    const int64_t height = s_.h / 2, width = s_.w / 2;
    const int64_t first_h = (at.h - s_.pad_top - s_.pad_top % 2) / 2;
    const int64_t first_w = (at.w - s_.pad_left - s_.pad_left % 2) / 2;
    const int windows = windows_of(g_.side);
    std::array<const float*, 16> pixels;
    std::array<const uint8_t*, 16> which;
    for (int i = 0; i < windows; ++i) {
      for (int j = 0; j < windows; ++j) {
        const int64_t h = first_h + i, w = first_w + j;
        const bool inside = h >= 0 && h < height && w >= 0 && w < width;
        const int64_t window = ((at.image * height + h) * width + w) * s_.c;
        const size_t k = static_cast<size_t>(i * windows + j);
        pixels[k] = inside ? a_.x + window : zeros_;
        which[k] = inside ? a_.x_which + window : reinterpret_cast<const uint8_t*>(zeros_);
      }
    }
    gather_({pixels.data(), s_.c, out, point_stride, which.data()});
  }

  void multiply(int64_t count, int64_t column, int64_t part, char* memory) const {
    // Columns that start at a whole panel are a packed matrix of their own.
    const PackedWinograd& w = a_.weights;
    multiply_points({g_.points, count, s_.c, part}, {w.data + column * s_.c, w.point_floats, w.isa}, lane_,
                    memory);
  }

  void scatter(int64_t tile, int64_t column, int64_t part, Products products) const {
    const Epilogue& e = a_.epilogue;
    const Spot at = spot(tile);
    const int64_t oh = s_.out_h(), ow = s_.out_w();
    const int64_t first = ((at.image * oh + at.h) * ow + at.w) * y_pixel_ + column;
    const float* residual = e.residual ? e.residual + first : nullptr;
    const bool later = !clamps_ && e.act_before_residual;  // the residual follows a curved activation
    const WinogradScatter s = {.in = products.in,
                               .point_stride = products.point_stride,
                               .channels = part,
                               .y = a_.y + first,
                               .residual = later ? nullptr : residual,
                               .bias = e.bias ? e.bias + column : nullptr,
                               .pixel = s_.dilation_w * y_pixel_,
                               .line = s_.dilation_h * ow * y_pixel_,
                               .rows = outputs(oh, at.h, s_.dilation_h),
                               .columns = outputs(ow, at.w, s_.dilation_w),
                               .lo = lo_,
                               .hi = hi_,
                               .clamps = clamps_ && e.act != Activation::none,
                               .act_before_residual = e.act_before_residual,
                               .gate = a_.gate ? a_.gate + first : nullptr,
                               .which = nullptr};
    a_.takes_maxima ? scatter_to_windows(s, at, column) : scatter_(s);
    if (clamps_) return;
    for (int i = 0; i < s.rows; ++i) {
      dense_kernels(a_.weights.isa)
          .activate({s.y + i * s.line, s.pixel, s.columns, part,
                     later && residual ? residual + i * s.line : nullptr},
                    e);
    }
  }

  void scatter_to_windows(WinogradScatter s, const Spot& at, int64_t column) const {
    const int64_t height = s_.out_h() / 2, width = s_.out_w() / 2;
    const int64_t first = ((at.image * height + at.h / 2) * width + at.w / 2) * s_.oc + column;
    s.y = a_.y + first;
    s.which = a_.which ? a_.which + first : nullptr;
    s.line = width * s_.oc;
    scatter_(s);
  }

  const WinogradArgs& a_;
  const ConvShape& s_;
  const Grid& g_;
  const float* zeros_;  // [c]
  PointLane lane_;
  void (*gather_)(const WinogradGather&);
  void (*scatter_)(const WinogradScatter&);
  int64_t x_pixel_, y_pixel_;
  bool clamps_;
  float lo_, hi_;
};

}  // namespace

bool winograd_fits(const ConvShape& s) {
  const auto small = [](int pad, int dilation) { return pad >= 0 && pad <= 2 * dilation; };
  return s.kh == 3 && s.kw == 3 && s.stride_h == 1 && s.stride_w == 1 && s.groups == 1 &&
         small(s.pad_top, s.dilation_h) && small(s.pad_bottom, s.dilation_h) &&
         small(s.pad_left, s.dilation_w) && small(s.pad_right, s.dilation_w);
}

size_t packed_winograd_bytes(const ConvShape& s, WinogradTile tile, Isa isa) {
  return winograd_view_bytes(forward_view(s, nullptr), tile, isa);
}

PackedWinograd pack_winograd(const ConvShape& s, const float* weights, WinogradTile tile, void* memory,
                             Isa isa) {
  base::ThreadPool alone(1);
  return transform_view(forward_view(s, weights), tile, memory, alone, isa);
}

size_t winograd_workspace_bytes(const ConvShape& s, WinogradTile tile, int threads) {
  size_t lanes = 0;
  for (const Isa isa : usable_isas()) {
    const Grid g = cut(s, tile, threads, dense_kernels(isa).panel);
    lanes =
        std::max(lanes, static_cast<size_t>(std::min<int64_t>(g.tasks(), threads)) * lane_of(g, s).bytes());
  }
  return lanes + align64(static_cast<size_t>(s.c) * sizeof(float)) + 64;
}

void winograd_nhwc(const WinogradArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(winograd_fits(s), "not a convolution for the Winograd form");
  base::check(args.x_which == nullptr || args.weights.tile == WinogradTile::four,
              "windows go to tiles of four");
  base::check(args.takes_maxima || args.which == nullptr, "places of maxima that are not taken");
  base::check((s.dilation_h == 1 && s.dilation_w == 1) || (!args.takes_maxima && args.x_which == nullptr),
              "windows of a dilated convolution");
  base::check((args.x_pixel == 0 && args.y_pixel == 0) ||
                  (!args.takes_maxima && args.x_which == nullptr && args.gate == nullptr),
              "windows of a group's channels");
  const bool is_plain = args.gate == nullptr && args.epilogue.residual == nullptr &&
                        (args.epilogue.act == Activation::none || args.epilogue.act == Activation::relu);
  base::check(!args.takes_maxima || is_plain, "maxima of more than a rectifier's results");
  if (s.n == 0 || s.oc == 0 || s.out_h() <= 0 || s.out_w() <= 0) return;
  const Grid g = cut(s, args.weights.tile, pool.size(), dense_kernels(args.weights.isa).panel);
  char* zeros = align64(workspace);
  const size_t zero_bytes = align64(static_cast<size_t>(s.c) * sizeof(float));
  std::memset(zeros, 0, zero_bytes);
  char* lanes = zeros + zero_bytes;
  const size_t lane_bytes = lane_of(g, s).bytes();
  const Winograd layer(args, g, reinterpret_cast<const float*>(zeros));
  run_lanes(pool, g.tasks(),
            [&](int64_t i, int lane) { layer.task(i, lanes + static_cast<size_t>(lane) * lane_bytes); });
}

}  // namespace trireme::cpu
#endif
