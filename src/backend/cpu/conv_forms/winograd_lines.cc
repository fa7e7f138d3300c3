// Blocks of tiles go through the transform along the line, one product for each point, and back, inside a
// task and its share of cache.
#include "backend/cpu/conv_forms/winograd_lines.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "backend/cpu/dense/point_products.h"
#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/device/round_up.h"
#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/tiles/dense_kernels.h"
#include "base/error.h"

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv_forms/winograd_lines.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/conv/winograd_points.inc"

#ifndef TRIREME_WINOGRAD_LINES
#define TRIREME_WINOGRAD_LINES
namespace trireme::cpu {

/// One tile's pixels on their way to V.
struct LineGather {
  const float* const* pixels;  // [points], zeros for those outside the image
  int64_t channels;
  float* out;  // point p at out + p * point_stride
  int64_t point_stride;
};

/// One tile's products on their way to y.
struct LineScatter {
  const float* in;  // point p at in + p * point_stride
  int64_t point_stride, channels;
  float* y;  // first output pixel; the next ones are `step` floats apart
  int64_t step;
  int outputs, count;     // of a whole tile; of those the ones inside the image
  const float* residual;  // like y, or null
  const float* bias;      // [channels] or null
  float lo, hi;
  bool act_before_residual;
};

/// The finite points but 0, as p of +-p. Chosen by search among eighths: results of 64 channels round 1.5
/// (two pairs), 2 to 2.5 (three) and 4 times (four) as much as sums of products do.
template <int kPairs>
constexpr std::array<double, kPairs> line_points() {
  if constexpr (kPairs == 2) return {0.625, 1.5};
  if constexpr (kPairs == 3) return {0.5, 1.0, 2.0};
  if constexpr (kPairs == 4) return {0.375, 0.75, 1.25, 1.75};
}

/// Coefficients, in x^2, of the product of (x^2 - p^2) over all points but that of `without`.
template <int kPairs>
constexpr std::array<double, kPairs + 1> line_product(size_t without) {
  std::array<double, kPairs + 1> product{1.0};
  for (size_t k = 0; k < kPairs; ++k) {
    if (k == without) continue;
    const double square = line_points<kPairs>()[k] * line_points<kPairs>()[k];
    for (size_t i = kPairs + 1; i-- > 0;) product[i] = (i > 0 ? product[i - 1] : 0.0) - square * product[i];
  }
  return product;
}

/// Constants of the transforms for the points 0, +-p for each p of line_points, and infinity.
template <int kPairs>
struct LineConstants {
  static constexpr int kPoints = 2 * kPairs + 2;
  static constexpr size_t kMostOutputs = 5;
  std::array<float, kPairs> point{};
  std::array<float, kPairs + 1> all{};                          // line_product without none
  std::array<std::array<float, kPairs + 1>, kPairs> others{};   // line_product without each
  std::array<std::array<float, kPairs>, kMostOutputs> power{};  // [exponent][pair]
  /// What the taps at +-p are divided by: the product of (p - q) over all other finite points q.
  std::array<double, kPairs> divisor{};

  constexpr LineConstants() {
    const auto points = line_points<kPairs>();
    for (size_t i = 0; i <= kPairs; ++i) all[i] = static_cast<float>(line_product<kPairs>(kPairs)[i]);
    for (size_t k = 0; k < kPairs; ++k) {
      const auto product = line_product<kPairs>(k);
      double value = 0, power_of = 1;
      for (size_t i = kPairs + 1; i-- > 0;) {
        others[k][i] = static_cast<float>(product[i]);
        value = value * points[k] * points[k] + product[i];
      }
      point[k] = static_cast<float>(points[k]);
      divisor[k] = 2 * points[k] * points[k] * value;
      for (auto& row : power) {
        row[k] = static_cast<float>(power_of);
        power_of *= points[k];
      }
    }
  }
};
template <int kPairs>
inline constexpr LineConstants<kPairs> kLine;

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

/// Row of B^T for a point p is the product of (x - q) over the other finite points q. Those of +-p have the
/// same even part, and opposite odd parts.
template <int kPairs>
void gather_line(const LineGather& g) {
  constexpr const LineConstants<kPairs>& kConstants = kLine<kPairs>;
  constexpr int kPoints = 2 * kPairs + 2;
  for (int64_t c = 0; c < g.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(g.channels - c);
    VF d[kPoints];
    for (int i = 0; i < kPoints; ++i) d[i] = load_some(g.pixels[i] + c, left);
    const auto put = [&](int point, VF v) { store_some(v, g.out + point * g.point_stride + c, left); };
    VF zero = d[kPoints - 2], infinity = d[kPoints - 1];
    for (size_t i = 0; i < kPairs; ++i) {
      zero = hn::MulAdd(set(kConstants.all[i]), d[2 * i], zero);
      infinity = hn::MulAdd(set(kConstants.all[i]), d[2 * i + 1], infinity);
    }
    put(0, zero);
    put(kPoints - 1, infinity);
    for (size_t k = 0; k < kPairs; ++k) {
      VF even = d[kPoints - 2], odd = d[kPoints - 3];
      for (size_t i = 0; i + 1 < kPairs; ++i) {
        even = hn::MulAdd(set(kConstants.others[k][i]), d[2 * i + 2], even);
        odd = hn::MulAdd(set(kConstants.others[k][i]), d[2 * i + 1], odd);
      }
      const VF point = set(kConstants.point[k]);
      put(static_cast<int>(2 * k + 1), hn::MulAdd(point, odd, even));
      put(static_cast<int>(2 * k + 2), hn::NegMulAdd(point, odd, even));
    }
  }
}

/// Row i of A^T has the i-th power of every finite point; infinity goes to the last output.
template <int kPairs>
void scatter_line(const LineScatter& s) {
  constexpr const LineConstants<kPairs>& kConstants = kLine<kPairs>;
  for (int64_t c = 0; c < s.channels; c += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(s.channels - c);
    const auto get = [&](int point) { return load_some(s.in + point * s.point_stride + c, left); };
    VF sums[kPairs], differences[kPairs];
    for (int k = 0; k < kPairs; ++k) {
      const VF plus = get(1 + 2 * k), minus = get(2 + 2 * k);
      sums[k] = hn::Add(plus, minus);
      differences[k] = hn::Sub(plus, minus);
    }
    const VF bias = s.bias ? load_some(s.bias + c, left) : set(0.0f);
    for (int i = 0; i < s.count; ++i) {
      VF y = i == 0 ? get(0) : i == s.outputs - 1 ? get(2 * kPairs + 1) : set(0.0f);
      for (size_t k = 0; k < kPairs; ++k)
        y = hn::MulAdd(set(kConstants.power[static_cast<size_t>(i)][k]),
                       i % 2 == 0 ? sums[k] : differences[k], y);
      y = hn::Add(y, bias);
      const int64_t at = i * s.step + c;
      if (s.residual && !s.act_before_residual) y = hn::Add(y, load_some(s.residual + at, left));
      y = clamp_keep_nan(y, s.lo, s.hi);
      if (s.residual && s.act_before_residual) y = hn::Add(y, load_some(s.residual + at, left));
      store_some(y, s.y + at, left);
    }
  }
}

void gather_two_pairs(const LineGather& g) { gather_line<2>(g); }
void gather_three_pairs(const LineGather& g) { gather_line<3>(g); }
void gather_four_pairs(const LineGather& g) { gather_line<4>(g); }
void scatter_two_pairs(const LineScatter& s) { scatter_line<2>(s); }
void scatter_three_pairs(const LineScatter& s) { scatter_line<3>(s); }
void scatter_four_pairs(const LineScatter& s) { scatter_line<4>(s); }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(gather_two_pairs);
HWY_EXPORT(gather_three_pairs);
HWY_EXPORT(gather_four_pairs);
HWY_EXPORT(scatter_two_pairs);
HWY_EXPORT(scatter_three_pairs);
HWY_EXPORT(scatter_four_pairs);

namespace {

constexpr int kMostTaps = 256, kMostPoints = 10, kMostPieceTaps = 7;
// V and M of a task should stay in most of a 1 MiB second-level cache.
constexpr int64_t kBlockBytes = 640 * 1024, kMostBlockBytes = 2 << 20;
// Below this many rows, two register tiles of the widest vectors, a product spends its time fetching weights.
constexpr int64_t kLeastTiles = 26;

/// One axis of a convolution.
struct LineAxis {
  int64_t in = 1, out = 1;
  int taps = 1, stride = 1, dilation = 1, pad = 0;
};

/// How a line of taps is cut into pieces of equal length, the last filled up with zeros.
struct LineCut {
  int pairs = 0, piece = 0, pieces = 0;
  int points() const { return 2 * pairs + 2; }
  int outputs() const { return points() + 1 - piece; }
  /// Products for each output, times 60.
  int cost() const { return 60 * points() * pieces / outputs(); }
};

/// By the number of taps alone, so that shapes which share weights share their transform.
LineCut line_cut(int taps) {
  LineCut best;
  for (const LineCut shape : {LineCut{2, 3}, LineCut{3, 4}, LineCut{3, 5}, LineCut{3, 6}, LineCut{4, 7}}) {
    const LineCut cut = {shape.pairs, shape.piece, (taps + shape.piece - 1) / shape.piece};
    if (best.piece == 0 || cut.cost() < best.cost()) best = cut;
  }
  return best;
}

/// The axis along which tiles lie, the other axis, and how the tiles are cut into blocks. Each tap of the
/// other axis and each piece of the line is a part of the products' depth.
struct LineGrid {
  bool is_tall = false;  // tiles run along the height
  LineAxis line, across;
  LineCut cut;
  int64_t along = 1;  // tiles along the line, of all phases of the dilation
  int64_t tiles = 0, blocks = 0, block_tiles = 0;
  int parts() const { return across.taps * cut.pieces; }
};

LineAxis height_of(const ConvShape& s) { return {s.h, s.out_h(), s.kh, s.stride_h, s.dilation_h, s.pad_top}; }
LineAxis width_of(const ConvShape& s) { return {s.w, s.out_w(), s.kw, s.stride_w, s.dilation_w, s.pad_left}; }

bool is_line(const LineAxis& axis) { return axis.stride == 1 && axis.taps >= 3; }

LineGrid grid_of(const ConvShape& s) {
  const LineAxis h = height_of(s), w = width_of(s);
  LineGrid g;
  g.is_tall =
      is_line(h) && (!is_line(w) || line_cut(h.taps).cost() * w.taps < line_cut(w.taps).cost() * h.taps);
  g.line = g.is_tall ? h : w;
  g.across = g.is_tall ? w : h;
  g.cut = line_cut(g.line.taps);
  g.along = g.line.dilation * divide_up(divide_up(g.line.out, g.line.dilation), g.cut.outputs());
  g.tiles = s.n * g.along * g.across.out;
  return g;
}

/// V and M of one tile.
int64_t tile_bytes(const LineGrid& g, const ConvShape& s) {
  return g.cut.points() * (g.parts() * s.c + s.oc) * static_cast<int64_t>(sizeof(float));
}

LineGrid grid_of(const ConvShape& s, int threads) {
  LineGrid g = grid_of(s);
  g.blocks = std::max<int64_t>(1, divide_up(g.tiles, std::max(kLeastTiles, kBlockBytes / tile_bytes(g, s))));
  if (threads > 1) g.blocks = std::min(g.tiles, divide_up(g.blocks, threads) * threads);
  g.block_tiles = divide_up(g.tiles, std::max<int64_t>(1, g.blocks));
  return g;
}

PointLane lane_of(const LineGrid& g, const ConvShape& s) {
  return point_lane({g.cut.points(), g.block_tiles, g.parts() * s.c, s.oc});
}

/// Row `point` of G: what each tap counts at that point.
template <int kPairs>
std::array<double, kMostPieceTaps> tap_factors(int taps, int point) {
  std::array<double, kMostPieceTaps> row{};
  if (point == 0) {
    row[0] = 1 / line_product<kPairs>(kPairs)[0];
  } else if (point == 2 * kPairs + 1) {
    row[static_cast<size_t>(taps - 1)] = 1;
  } else {
    const size_t pair = static_cast<size_t>(point - 1) / 2;
    const double p = point % 2 == 0 ? -line_points<kPairs>()[pair] : line_points<kPairs>()[pair];
    row[0] = 1 / kLine<kPairs>.divisor[pair];
    for (size_t t = 1; t < static_cast<size_t>(taps); ++t) row[t] = row[t - 1] * p;
  }
  return row;
}

class Lines {
 public:
  Lines(const WinogradLinesArgs& args, const LineGrid& grid, const float* zeros)
      : a_(args),
        s_(args.shape),
        g_(grid),
        zeros_(zeros),
        depth_(grid.parts() * args.shape.c),
        lane_(lane_of(grid, args.shape)) {
    simd_ready();
    gather_ = g_.cut.pairs == 2   ? HWY_DYNAMIC_DISPATCH(gather_two_pairs)
              : g_.cut.pairs == 3 ? HWY_DYNAMIC_DISPATCH(gather_three_pairs)
                                  : HWY_DYNAMIC_DISPATCH(gather_four_pairs);
    scatter_ = g_.cut.pairs == 2   ? HWY_DYNAMIC_DISPATCH(scatter_two_pairs)
               : g_.cut.pairs == 3 ? HWY_DYNAMIC_DISPATCH(scatter_three_pairs)
                                   : HWY_DYNAMIC_DISPATCH(scatter_four_pairs);
    clamps_ = clamp_bounds(a_.epilogue, lo_, hi_);
  }

  void task(int64_t block, char* memory) const {
    const int64_t begin = g_.tiles * block / g_.blocks, end = g_.tiles * (block + 1) / g_.blocks;
    const int64_t count = end - begin;
    float* v = reinterpret_cast<float*>(memory);            // [points, count, depth] and a line
    float* m = reinterpret_cast<float*>(memory + lane_.v);  // [points, count, oc] and a line
    for (int64_t t = 0; t < count; ++t) gather(begin + t, v + t * depth_, point_floats(count, depth_));
    const PackedWinogradLines& w = a_.weights;
    multiply_points({g_.cut.points(), count, depth_, s_.oc}, {w.data, w.point_floats, w.isa}, lane_, memory);
    for (int64_t t = 0; t < count; ++t) scatter(begin + t, m + t * s_.oc, point_floats(count, s_.oc));
  }

 private:
  /// The first output of a tile along the line, its place along the other axis, and its image.
  struct Spot {
    int64_t image, first, across;
  };

  /// Tiles whose pixels are neighbours in memory follow each other.
  Spot spot(int64_t tile) const {
    const int64_t fast = g_.is_tall ? g_.across.out : g_.along, slow = g_.is_tall ? g_.along : g_.across.out;
    const int64_t inner = tile % fast, outer = tile / fast % slow;
    const int64_t along = g_.is_tall ? outer : inner, per_phase = g_.along / g_.line.dilation;
    return {tile / fast / slow, along / per_phase + along % per_phase * g_.cut.outputs() * g_.line.dilation,
            g_.is_tall ? inner : outer};
  }

  /// The pixel (along, across) of an image [line, other] or [other, line].
  int64_t pixel(int64_t image, int64_t along, int64_t across, int64_t line, int64_t other) const {
    return g_.is_tall ? (image * line + along) * other + across : (image * other + across) * line + along;
  }

  void gather(int64_t tile, float* out, int64_t point_stride) const {
    const Spot at = spot(tile);
    for (int tap = 0; tap < g_.across.taps; ++tap) {
      const int64_t across = at.across * g_.across.stride - g_.across.pad + int64_t{tap} * g_.across.dilation;
      const bool has_line = across >= 0 && across < g_.across.in;
      for (int piece = 0; piece < g_.cut.pieces; ++piece, out += s_.c) {
        std::array<const float*, kMostPoints> pixels;
        for (int i = 0; i < g_.cut.points(); ++i) {
          const int64_t along = at.first - g_.line.pad + int64_t{piece * g_.cut.piece + i} * g_.line.dilation;
          const bool inside = has_line && along >= 0 && along < g_.line.in;
          pixels[static_cast<size_t>(i)] =
              inside ? a_.x + pixel(at.image, along, across, g_.line.in, g_.across.in) * s_.c : zeros_;
        }
        gather_({pixels.data(), s_.c, out, point_stride});
      }
    }
  }

  void scatter(int64_t tile, const float* in, int64_t point_stride) const {
    const Spot at = spot(tile);
    const int64_t dilation = g_.line.dilation;
    const int64_t count =
        std::clamp<int64_t>(divide_up(g_.line.out - at.first, dilation), 0, g_.cut.outputs());
    if (count == 0) return;  // a phase that is shorter than the others
    const Epilogue& e = a_.epilogue;
    const int64_t first = pixel(at.image, at.first, at.across, g_.line.out, g_.across.out) * s_.oc;
    const float* residual = e.residual ? e.residual + first : nullptr;
    const bool later = !clamps_ && e.act_before_residual;  // the residual follows a curved activation
    const LineScatter s = {.in = in,
                           .point_stride = point_stride,
                           .channels = s_.oc,
                           .y = a_.y + first,
                           .step = dilation * (g_.is_tall ? g_.across.out : 1) * s_.oc,
                           .outputs = g_.cut.outputs(),
                           .count = static_cast<int>(count),
                           .residual = later ? nullptr : residual,
                           .bias = e.bias,
                           .lo = lo_,
                           .hi = hi_,
                           .act_before_residual = e.act_before_residual};
    scatter_(s);
    if (!clamps_)
      dense_kernels(a_.weights.isa).activate({s.y, s.step, s.count, s_.oc, later ? residual : nullptr}, e);
  }

  const WinogradLinesArgs& a_;
  const ConvShape& s_;
  const LineGrid& g_;
  const float* zeros_;  // [c]
  int64_t depth_;       // of the products: channels of every part
  PointLane lane_;
  void (*gather_)(const LineGather&);
  void (*scatter_)(const LineScatter&);
  bool clamps_;
  float lo_, hi_;
};

int64_t point_floats_of(const LineGrid& g, const ConvShape& s, Isa isa) {
  return static_cast<int64_t>(align64(packed_b_bytes(g.parts() * s.c, s.oc, isa)) / sizeof(float));
}

/// The weights [oc, c, kh, kw] on their way to one point, as [oc, parts, c].
struct PointWeights {
  const float* from;
  std::array<double, kMostPieceTaps> factors;
  float* to;
};

void transform_weights(const LineGrid& g, const ConvShape& s, const PointWeights& point,
                       base::ThreadPool& pool) {
  const int line_step = g.is_tall ? s.kw : 1, across_step = g.is_tall ? 1 : s.kw;
  const int64_t taps = s.kh * s.kw, depth = g.parts() * s.c;
  pool.for_range(s.oc, 1 + 4096 / depth, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for (int part = 0; part < g.parts(); ++part) {
        const int first = part % g.cut.pieces * g.cut.piece;
        const int count = std::min(g.cut.piece, g.line.taps - first);
        const float* w = point.from + o * s.c * taps + part / g.cut.pieces * across_step + first * line_step;
        for (int64_t c = 0; c < s.c; ++c) {
          double sum = 0;
          for (int t = 0; t < count; ++t)
            sum += point.factors[static_cast<size_t>(t)] * w[c * taps + t * line_step];
          point.to[o * depth + part * s.c + c] = static_cast<float>(sum);
        }
      }
    }
  });
}

}  // namespace

bool winograd_lines_fits(const ConvShape& s) {
  if (s.groups != 1 || (!is_line(height_of(s)) && !is_line(width_of(s)))) return false;
  if (s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0) return false;
  if (int64_t{s.kh} * s.kw > kMostTaps || s.out_h() <= 0 || s.out_w() <= 0) return false;
  return kLeastTiles * tile_bytes(grid_of(s), s) <= kMostBlockBytes;
}

int64_t winograd_lines_products(const ConvShape& s) {
  const LineGrid g = grid_of(s);
  return g.along * g.across.out * g.cut.points() * g.parts();
}

size_t packed_winograd_lines_bytes(const ConvShape& s, Isa isa) {
  const LineGrid g = grid_of(s);
  return static_cast<size_t>(g.cut.points() * point_floats_of(g, s, isa)) * sizeof(float) + kAlignment;
}

PackedWinogradLines pack_winograd_lines(const ConvShape& s, const float* weights, void* memory,
                                        base::ThreadPool& pool, Isa isa) {
  const LineGrid g = grid_of(s);
  float* out = reinterpret_cast<float*>(align64(memory));
  const PackedWinogradLines packed = {out, point_floats_of(g, s, isa), isa};
  const int64_t depth = g.parts() * s.c;
  std::vector<float> point(static_cast<size_t>(s.oc * depth));
  for (int p = 0; p < g.cut.points(); ++p) {
    const auto factors = g.cut.pairs == 2   ? tap_factors<2>(g.cut.piece, p)
                         : g.cut.pairs == 3 ? tap_factors<3>(g.cut.piece, p)
                                            : tap_factors<4>(g.cut.piece, p);
    transform_weights(g, s, {weights, factors, point.data()}, pool);
    pack_b({point.data(), depth, s.oc, depth, true}, out + p * packed.point_floats, pool, isa);
  }
  return packed;
}

size_t winograd_lines_workspace_bytes(const ConvShape& s, int threads) {
  const LineGrid g = grid_of(s, threads);
  const size_t lanes = static_cast<size_t>(std::min<int64_t>(g.blocks, threads)) * lane_of(g, s).bytes();
  return lanes + align64(static_cast<size_t>(s.c) * sizeof(float)) + kAlignment;
}

void winograd_lines_nhwc(const WinogradLinesArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(winograd_lines_fits(s), "not a convolution for the Winograd form of lines");
  if (s.n == 0 || s.oc == 0) return;
  const LineGrid g = grid_of(s, pool.size());
  char* zeros = align64(workspace);
  const size_t zero_bytes = align64(static_cast<size_t>(s.c) * sizeof(float));
  std::memset(zeros, 0, zero_bytes);
  char* lanes = zeros + zero_bytes;
  const size_t lane_bytes = lane_of(g, s).bytes();
  const Lines layer(args, g, reinterpret_cast<const float*>(zeros));
  run_lanes(pool, g.blocks,
            [&](int64_t i, int lane) { layer.task(i, lanes + static_cast<size_t>(lane) * lane_bytes); });
}

}  // namespace trireme::cpu
#endif
