// Tiles of x and dy go to the points in packed order, one product per point adds them up, and three taps come
// back. Where the sums are few each task owns a piece of the tiles and its sums; else the team shares groups.
#include "backend/cpu/conv/winograd_grad_w.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "backend/cpu/dense/gemm_tn.h"
#include "backend/cpu/dense/point_products.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/winograd_grad_w.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/conv/winograd_points.inc"

#ifndef TRIREME_WINOGRAD_GRAD_W
#define TRIREME_WINOGRAD_GRAD_W
namespace trireme::cpu {

/// The pixels of one tile on their way to the points: channel c of point p goes to
/// out + p * point_stride + c / width * panel_stride + c % width.
struct TileToPoints {
  const float* const* pixels;
  int64_t channels, padded;  // padded: whole panels, filled with zeros
  float* out;
  int64_t point_stride, panel_stride;
  int64_t width;
  const uint8_t* const* which = nullptr;  // of windows: pixels and which are [2 * 2]
};

/// Windows [count, channels] on their way to the sum of the image that they stand for.
struct WindowSums {
  const float* dy;
  const uint8_t* which;
  int64_t count, channels;
  float* sums;  // [channels]
};

/// Sums at the points on their way to 3 x 3 taps of one output channel: dw[c][9].
struct PointsToTaps {
  const float* in;  // point p at in + p * point_stride
  int64_t point_stride;
  int64_t channels;
  float* dw;
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

struct InputRows {
  static constexpr int kSide = 6;
  static HWY_INLINE void apply(const VF* d, VF* o) { Four::input(d, o); }
};

struct OutputRows {
  static constexpr int kSide = 4;
  static HWY_INLINE void apply(const VF* d, VF* o) { Four::outputs(d, o); }
};

/// kSide^2 pixels to 36 points; the pixels stand in windows if kWindows.
template <class Rows, bool kWindows>
HWY_INLINE void to_points(const TileToPoints& t) {
  constexpr int kSide = Rows::kSide;
  for (int64_t c = 0; c < t.padded; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(std::max<int64_t>(0, t.channels - c));
    float* out = t.out + c / t.width * t.panel_stride + c % t.width;
    VF middle[6][kSide];
    for (int j = 0; j < kSide; ++j) {
      VF d[kSide], o[6];
      for (int i = 0; i < kSide; ++i) {
        if constexpr (kWindows) {
          const int window = i / 2 * 2 + j / 2;
          d[i] = window_pixel(load_some(t.pixels[window] + c, left), load_which(t.which[window] + c, left),
                              i % 2 * 2 + j % 2);
        } else {
          d[i] = load_some(t.pixels[i * kSide + j] + c, left);
        }
      }
      Rows::apply(d, o);
      for (int i = 0; i < 6; ++i) middle[i][j] = o[i];
    }
    for (int i = 0; i < 6; ++i) {
      VF o[6];
      Rows::apply(middle[i], o);
      for (int j = 0; j < 6; ++j) hn::StoreU(o[j], kF, out + (i * 6 + j) * t.point_stride);
    }
  }
}

void input_to_points(const TileToPoints& t) { to_points<InputRows, false>(t); }
void output_to_points(const TileToPoints& t) { to_points<OutputRows, false>(t); }
void windows_to_points(const TileToPoints& t) { to_points<OutputRows, true>(t); }

void sum_windows(const WindowSums& w) {
  for (int64_t c = 0; c < w.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(w.channels - c);
    VF sum = set(0.0f);
    for (int64_t i = 0; i < w.count; ++i) {
      const int64_t at = i * w.channels + c;
      const VI none = hn::Set(kI, int32_t{kNoMaximum});
      const auto stands = hn::RebindMask(kF, hn::Lt(load_which(w.which + at, left), none));
      sum = hn::Add(sum, hn::IfThenElseZero(stands, load_some(w.dy + at, left)));
    }
    store_some(sum, w.sums + c, left);
  }
}

void points_to_taps(const PointsToTaps& t) {
  HWY_ALIGN float taps[9][kLanes];
  for (int64_t c = 0; c < t.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(t.channels - c);
    VF middle[3][6];
    for (int j = 0; j < 6; ++j) {
      VF m[6], o[3];
      for (int i = 0; i < 6; ++i) m[i] = load_some(t.in + (i * 6 + j) * t.point_stride + c, left);
      Four::taps_back(m, o);
      for (int i = 0; i < 3; ++i) middle[i][j] = o[i];
    }
    for (int i = 0; i < 3; ++i) {
      VF o[3];
      Four::taps_back(middle[i], o);
      for (int j = 0; j < 3; ++j) hn::Store(o[j], kF, taps[i * 3 + j]);
    }
    float* out = t.dw + c * 9;
    for (size_t l = 0; l < std::min(left, kLanes); ++l) {
      for (int i = 0; i < 9; ++i) *out++ = taps[i][l];
    }
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(input_to_points);
HWY_EXPORT(output_to_points);
HWY_EXPORT(windows_to_points);
HWY_EXPORT(sum_windows);
HWY_EXPORT(points_to_taps);

namespace {

constexpr int64_t kPoints = 36;
// Transformed tiles of a group stay near; where the sums, which every group reads and writes, are many,
// groups are larger. Sums of a block of output channels should stay in the shared cache.
constexpr int64_t kLeastGroupBytes = 4 << 20, kMostGroupBytes = 16 << 20, kSumBytes = 8 << 20;
constexpr int64_t kLeastTiles = 128, kMostTiles = 256;  // fewer would spend their time on the sums
constexpr int64_t kBlockRows = 128, kBlockColumns = 128;
constexpr int64_t kTileGrain = 4;
// Sums that a core keeps in its second-level cache; transformed tiles of a chunk, deep enough that adding to
// the sums costs little; pieces of the tiles, a number that teams of 1, 2, 4 and 8 share evenly.
constexpr int64_t kOwnSumBytes = 320 * 1024, kChunkBytes = 1344 * 1024, kPieces = 8;
constexpr int64_t kAhead = 2 * 4;  // pixels
// Windows that are summed in one chain, and the most chains.
constexpr int64_t kChainWindows = 64, kMostChains = 64;

int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

/// How a layer is cut: pieces of tiles that a task takes in groups, each with sums of its own; or, if there
/// are no pieces, groups of tiles that the team shares, and blocks of output channels where one group holds
/// all tiles.
struct Cut {
  int64_t tiles_h, tiles_w, tiles, groups, group_tiles;
  int64_t panel, columns, rows;  // c and oc in whole panels
  int64_t sum_rows;              // output channels whose sums are held at a time
  int64_t pieces = 0;
};

Cut cut(const ConvShape& s, const DenseKernels& kernels) {
  Cut c{.tiles_h = divide_up(s.out_h(), 4), .tiles_w = divide_up(s.out_w(), 4)};
  c.panel = s.c <= kernels.width ? kernels.width : kernels.panel;
  c.tiles = s.n * c.tiles_h * c.tiles_w;
  c.columns = round_up(s.c, c.panel);
  c.rows = round_up(s.oc, kTnRows);
  const int64_t tile_bytes = kPoints * (c.columns + c.rows) * 4;
  const int64_t own_tiles = kChunkBytes / tile_bytes;
  if (kPoints * s.c * s.oc * 4 <= kOwnSumBytes && c.tiles >= kPieces * own_tiles) {
    c.pieces = kPieces;
    c.groups = divide_up(divide_up(c.tiles, kPieces), own_tiles);
    c.group_tiles = divide_up(divide_up(c.tiles, kPieces), c.groups);
    c.sum_rows = s.oc;
    return c;
  }
  const int64_t group_bytes = std::clamp(2 * kPoints * s.c * s.oc * 4, kLeastGroupBytes, kMostGroupBytes);
  c.groups = divide_up(c.tiles, std::clamp(group_bytes / tile_bytes, kLeastTiles, kMostTiles));
  c.group_tiles = divide_up(c.tiles, c.groups);
  const int64_t fitting = std::max(kBlockRows, kSumBytes / (kPoints * s.c * 4) / kBlockRows * kBlockRows);
  c.sum_rows = c.groups == 1 ? std::min(s.oc, fitting) : s.oc;
  return c;
}

/// Floats of the workspace: points of x and of dy, once for each of `lanes`; sums, once for each piece; one
/// pixel of zeros.
struct Memory {
  int64_t x, dy, sums, zeros, lanes, pieces;
  int64_t floats() const { return lanes * (x + dy) + pieces * sums + zeros; }
};

Memory memory_of(const ConvShape& s, const Cut& c, int threads) {
  return {.x = kPoints * point_floats(c.group_tiles, c.columns),
          .dy = kPoints * point_floats(c.group_tiles, c.rows),
          .sums = round_up(kPoints * point_floats(c.sum_rows, s.c), 16),
          .zeros = round_up(std::max(s.c, s.oc), 16),
          .lanes = c.pieces > 0 ? std::min<int64_t>(threads, c.pieces) : 1,
          .pieces = std::max<int64_t>(1, c.pieces)};
}

/// Transformed tiles: x [36, columns / panel, tiles, panel], dy [36, rows / 16, tiles, 16].
struct Points {
  float *x, *dy;
};

class Layer {
 public:
  Layer(const ConvGradWArgs& a, const Cut& cut, float* memory, int threads)
      : a_(a), s_(a.shape), c_(cut), m_(memory_of(s_, cut, threads)), kernels_(dense_kernels(a.isa)) {
    sums_ = memory;
    zeros_ = sums_ + m_.pieces * m_.sums;
    points_ = zeros_ + m_.zeros;
    std::memset(zeros_, 0, static_cast<size_t>(m_.zeros) * sizeof(float));
    simd_ready();
    input_ = HWY_DYNAMIC_DISPATCH(input_to_points);
    output_ =
        a.which == nullptr ? HWY_DYNAMIC_DISPATCH(output_to_points) : HWY_DYNAMIC_DISPATCH(windows_to_points);
    taps_ = HWY_DYNAMIC_DISPATCH(points_to_taps);
  }

  void run(base::ThreadPool& pool) const { c_.pieces > 0 ? run_pieces(pool) : run_groups(pool); }

 private:
  /// Transformed tiles never leave the core that made them.
  void run_pieces(base::ThreadPool& pool) const {
    std::atomic<int64_t> next{0};
    pool.run(m_.lanes, [&](int64_t lane) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < c_.pieces;)
        piece(i, points_of(lane));
    });
    pool.run(s_.oc, [&](int64_t o) {
      const int64_t stride = point_floats(s_.oc, s_.c);
      for (int64_t p = 0; p < kPoints; ++p) {
        const int64_t at = p * stride + o * s_.c;
        sum_tree(sums_, c_.pieces, m_.sums, at, at + s_.c);
      }
      taps_({sums_ + o * s_.c, stride, s_.c, a_.dw + o * s_.c * 9});
    });
  }

  void piece(int64_t index, const Points& points) const {
    const int64_t first = c_.tiles * index / c_.pieces, tiles = c_.tiles * (index + 1) / c_.pieces - first;
    for (int64_t g = 0; g < c_.groups; ++g) {
      const int64_t begin = tiles * g / c_.groups, count = tiles * (g + 1) / c_.groups - begin;
      for (int64_t t = 0; t < count; ++t) transform(first + begin + t, t, count, points);
      for (int64_t p = 0; p < kPoints; ++p) {
        for (int64_t row = 0; row < s_.oc; row += kBlockRows) {
          for (int64_t column = 0; column < s_.c; column += kBlockColumns)
            multiply(p, {0, s_.oc, row, column}, {count, g > 0}, points, sums_ + index * m_.sums);
        }
      }
    }
  }

  void run_groups(base::ThreadPool& pool) const {
    const Points points = points_of(0);
    for (int64_t g = 0; g < c_.groups; ++g) {
      const int64_t begin = c_.tiles * g / c_.groups, count = c_.tiles * (g + 1) / c_.groups - begin;
      pool.run(divide_up(count, kTileGrain), [&](int64_t i) {
        for (int64_t t = i * kTileGrain; t < std::min(count, (i + 1) * kTileGrain); ++t) {
          transform(begin + t, t, count, points);
        }
      });
      for (int64_t row = 0; row < s_.oc; row += c_.sum_rows) {
        const int64_t rows = std::min(c_.sum_rows, s_.oc - row);
        const int64_t down = divide_up(rows, kBlockRows), across = divide_up(s_.c, kBlockColumns);
        pool.run(kPoints * down * across, [&](int64_t i) {
          const Block block = {row, rows, i / across % down * kBlockRows, i % across * kBlockColumns};
          multiply(i / down / across, block, {count, g > 0}, points, sums_);
        });
        if (g + 1 < c_.groups) continue;
        pool.run(rows, [&](int64_t o) {
          taps_({sums_ + o * s_.c, point_floats(rows, s_.c), s_.c, a_.dw + (row + o) * s_.c * 9});
        });
      }
    }
  }

  /// Output channels [first, first + held) have sums; of them the block begins at `row`, `column`.
  struct Block {
    int64_t first, held;
    int64_t row, column;
  };
  struct Depth {
    int64_t tiles;
    bool accumulate;
  };

  /// Pixels of the tile after the next: the processor does not foresee so many lines.
  static void ask_for(const float* pixel, int64_t channels) {
    for (int64_t c = 0; c < channels; c += 16) __builtin_prefetch(pixel + c, 0, 2);
  }

  Points points_of(int64_t lane) const {
    float* x = points_ + lane * (m_.x + m_.dy);
    return {x, x + m_.x};
  }

  /// Tile `tile` of the layer to place `at` of a group of `count`.
  void transform(int64_t tile, int64_t at, int64_t count, const Points& points) const {
    const int64_t line = tile / c_.tiles_w, image = line / c_.tiles_h;
    const int64_t h = line % c_.tiles_h * 4, w = tile % c_.tiles_w * 4;
    std::array<const float*, kPoints> pixels;
    for (int i = 0; i < 6; ++i) {
      const int64_t ih = h - s_.pad_top + i;
      for (int j = 0; j < 6; ++j) {
        const int64_t iw = w - s_.pad_left + j;
        const bool inside = ih >= 0 && ih < s_.h && iw >= 0 && iw < s_.w;
        pixels[static_cast<size_t>(i * 6 + j)] =
            inside ? a_.x + ((image * s_.h + ih) * s_.w + iw) * s_.c : zeros_;
        if (j >= 2) ask_for(pixels[static_cast<size_t>(i * 6 + j)] + kAhead * s_.c, s_.c);
      }
    }
    input_({pixels.data(), s_.c, c_.columns, points.x + at * c_.panel, point_floats(count, c_.columns),
            count * c_.panel, c_.panel});
    TileToPoints t{pixels.data(),   s_.oc,  c_.rows, points.dy + at * kTnRows, point_floats(count, c_.rows),
                   count * kTnRows, kTnRows};
    if (a_.which != nullptr) return transform_windows(t, {image, h / 2, w / 2}, pixels.data());
    const int64_t oh = s_.out_h(), ow = s_.out_w();
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) {
        const bool inside = h + i < oh && w + j < ow;
        pixels[static_cast<size_t>(i * 4 + j)] =
            inside ? a_.dy + ((image * oh + h + i) * ow + w + j) * s_.oc : zeros_;
        ask_for(pixels[static_cast<size_t>(i * 4 + j)] + kAhead * s_.oc, s_.oc);
      }
    }
    output_(t);
  }

  struct Window {
    int64_t image, h, w;
  };

  /// The four windows of a tile, the first at `at`.
  void transform_windows(TileToPoints& t, const Window& at, const float** pixels) const {
    const int64_t height = s_.out_h() / 2, width = s_.out_w() / 2;
    std::array<const uint8_t*, 4> which;
    for (int i = 0; i < 4; ++i) {
      const int64_t h = at.h + i / 2, w = at.w + i % 2;
      const bool inside = h < height && w < width;
      const int64_t window = ((at.image * height + h) * width + w) * s_.oc;
      pixels[i] = inside ? a_.dy + window : zeros_;
      which[static_cast<size_t>(i)] = inside ? a_.which + window : reinterpret_cast<const uint8_t*>(zeros_);
    }
    t.which = which.data();
    output_(t);
  }

  /// One block of one point's sums [held, c].
  void multiply(int64_t point, const Block& b, Depth depth, const Points& points, float* sums) const {
    TnBlock t{.k = depth.tiles, .accumulate = depth.accumulate};
    t.a = points.dy + point * point_floats(depth.tiles, c_.rows) + (b.first + b.row) * depth.tiles;
    t.b = points.x + point * point_floats(depth.tiles, c_.columns) + b.column * depth.tiles;
    t.m = std::min(kBlockRows, b.held - b.row);
    t.n = std::min(kBlockColumns, s_.c - b.column);
    t.c = sums + point * point_floats(b.held, s_.c) + b.row * s_.c + b.column;
    t.ldc = s_.c;
    t.whole_panels = c_.panel > kernels_.width;
    multiply_tn(t, kernels_);
  }

  const ConvGradWArgs& a_;
  const ConvShape& s_;
  const Cut& c_;
  const Memory m_;
  const DenseKernels& kernels_;
  float *sums_, *zeros_, *points_;  // [pieces][36, rows, c], [zeros], [lanes] of Points
  void (*input_)(const TileToPoints&);
  void (*output_)(const TileToPoints&);
  void (*taps_)(const PointsToTaps&);
};

/// Chains of windows for the sum over all pixels: by extents, not by the team.
int64_t window_chains(const ConvShape& s) {
  const int64_t windows = s.n * (s.out_h() / 2) * (s.out_w() / 2);
  return std::clamp<int64_t>(windows / kChainWindows, 1, kMostChains);
}

void sum_all_windows(const ConvGradWArgs& a, float* parts, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  const int64_t windows = s.n * (s.out_h() / 2) * (s.out_w() / 2), chains = window_chains(s);
  const auto sum = HWY_DYNAMIC_DISPATCH(sum_windows);
  pool.run(chains, [&](int64_t i) {
    const int64_t begin = windows * i / chains, end = windows * (i + 1) / chains;
    sum({a.dy + begin * s.oc, a.which + begin * s.oc, end - begin, s.oc, parts + i * s.oc});
  });
  sum_tree(parts, chains, s.oc, 0, s.oc);
  std::memcpy(a.db, parts, static_cast<size_t>(s.oc) * sizeof(float));
}

}  // namespace

size_t winograd_grad_w_bytes(const ConvShape& s, int threads) {
  int64_t floats = 0;
  for (const Isa isa : usable_isas())
    floats = std::max(floats, memory_of(s, cut(s, dense_kernels(isa)), threads).floats());
  floats = std::max(floats, window_chains(s) * s.oc);
  return static_cast<size_t>(floats + 16) * sizeof(float);
}

void winograd_grad_w(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool) {
  base::check(winograd_fits(args.shape) && args.shape.dilation_h == 1 && args.shape.dilation_w == 1,
              "not a convolution for the Winograd form");
  const Cut c = cut(args.shape, dense_kernels(args.isa));
  const uintptr_t at = (reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t{63};
  float* memory = reinterpret_cast<float*>(at);
  Layer(args, c, memory, pool.size()).run(pool);
  // The workspace is free again.
  if (args.db != nullptr) sum_all_windows(args, memory, pool);
}

}  // namespace trireme::cpu
#endif
