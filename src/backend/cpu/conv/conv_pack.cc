// Blocks of weights are transposed in the first-level cache and written as panel rows, or through G w G^T.
#include "backend/cpu/conv/conv_pack.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

#include "hwy/cache_control.h"

#include "backend/cpu/simd/simd_targets.h"
#include "backend/cpu/device/round_up.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/conv_pack.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/conv/winograd_points.inc"

#ifndef TRIREME_CONV_PACK_TYPES
#define TRIREME_CONV_PACK_TYPES
namespace trireme::cpu {

/// Nine rows of taps [count] on their way to the points: point p at out + p * point_stride.
struct TapsTransform {
  const float* taps[9];
  int64_t count;
  float* out;
  int64_t point_stride;
  bool past_cache;  // out is 64-byte aligned, count whole vectors, and too much follows for a cache to keep
};

}  // namespace trireme::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class Tile>
HWY_INLINE void transform_taps(const TapsTransform& t) {
  constexpr int kSide = Tile::kSide;
  for (int64_t i = 0; i < t.count; i += static_cast<int64_t>(kLanes)) {
    const size_t left = static_cast<size_t>(t.count - i);
    VF middle[kSide][3];
    for (int j = 0; j < 3; ++j) {
      VF w[3], o[kSide];
      for (int k = 0; k < 3; ++k) w[k] = load_some(t.taps[k * 3 + j] + i, left);
      Tile::taps(w, o);
      for (int k = 0; k < kSide; ++k) middle[k][j] = o[k];
    }
    for (int k = 0; k < kSide; ++k) {
      VF o[kSide];
      Tile::taps(middle[k], o);
      float* out = t.out + k * kSide * t.point_stride + i;
      for (int j = 0; j < kSide; ++j, out += t.point_stride) {
        if (t.past_cache) {
          hn::Stream(o[j], kF, out);
        } else {
          store_some(o[j], out, left);
        }
      }
    }
  }
}

void transform_taps_two(const TapsTransform& t) { transform_taps<Two>(t); }
void transform_taps_four(const TapsTransform& t) { transform_taps<Four>(t); }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(transform_taps_two);
HWY_EXPORT(transform_taps_four);

namespace {

// Floats of one transposed run of taps: half of a first-level cache at 16 columns.
constexpr int64_t kMaxRun = 256;
// Transformed weights above this are read from memory anyway: writing them past the cache saves fetching the
// lines first.
constexpr size_t kPastCacheBytes = 16 << 20;
constexpr int64_t kChunk = 64;  // depth channels of one task

/// Depth channels [begin, end) of one panel.
struct Piece {
  int64_t group, column;  // first column in the group
  int valid, width;       // columns there, and floats between panel rows
  int64_t begin, end;
};

/// Hands the rows of a piece to put(depth channel, first column, taps): taps holds the source's taps of
/// kernels.width columns, tap t at taps + t * kernels.width.
template <class Put>
void for_columns(const WeightView& v, const Piece& p, const DenseKernels& kernels, const Put& put) {
  const int64_t taps = v.kh * v.kw;
  const int lanes = kernels.width;
  alignas(64) float block[kMaxRun * kRowSlots];
  // A run of the source holds the taps of several depth channels forward, of one backward.
  const int64_t most = v.backward ? 1 : std::max<int64_t>(1, kMaxRun / taps);
  for (int64_t d = p.begin; d < p.end; d += most) {
    const int64_t count = std::min(most, p.end - d);
    for (int j = 0; j < p.width; j += lanes) {
      const float* rows[kRowSlots];
      for (int r = 0; r < lanes; ++r) {
        const int64_t n = p.column + std::min(j + r, p.valid - 1);
        rows[r] = v.backward ? v.data + ((p.group * v.depth + d) * v.columns + n) * taps
                             : v.data + ((p.group * v.columns + n) * v.depth + d) * taps;
      }
      kernels.transpose(rows, count * taps, block, lanes);
      if (j + lanes > p.valid) {
        for (int64_t i = 0; i < count * taps; ++i)
          std::fill(block + i * lanes + std::max(0, p.valid - j), block + (i + 1) * lanes, 0.0f);
      }
      for (int64_t i = 0; i < count; ++i) put(d + i, j, block + i * taps * lanes);
    }
  }
}

/// Calls body(piece, offset of its panel in floats) over all panels and depth chunks.
template <class Body>
void for_panels(const WeightView& v, const DenseKernels& kernels, int64_t rows, base::ThreadPool& pool,
                const Body& body) {
  const int64_t panels = divide_up(v.columns, kernels.panel), chunks = divide_up(v.depth, kChunk);
  pool.run(v.groups * panels * chunks, [&](int64_t task) {
    const int64_t chunk = task % chunks, panel = task / chunks % panels, group = task / chunks / panels;
    Piece p{.group = group, .column = panel * kernels.panel};
    p.valid = static_cast<int>(std::min<int64_t>(kernels.panel, v.columns - p.column));
    p.width = p.valid > kernels.width ? kernels.panel : kernels.width;
    p.begin = chunk * kChunk;
    p.end = std::min(v.depth, p.begin + kChunk);
    body(p, p.column * rows);
  });
}

}  // namespace

WeightView forward_view(const ConvShape& s, const float* weights) {
  return {.data = weights,
          .groups = s.groups,
          .depth = s.c / s.groups,
          .columns = s.oc / s.groups,
          .kh = s.kh,
          .kw = s.kw,
          .taps_h = s.kh,
          .taps_w = s.kw};
}

WeightView backward_view(const ConvShape& s, const float* weights) {
  return {.data = weights,
          .groups = s.groups,
          .depth = s.oc / s.groups,
          .columns = s.c / s.groups,
          .kh = s.kh,
          .kw = s.kw,
          .first_h = s.kh - 1,
          .step_h = -1,
          .taps_h = s.kh,
          .first_w = s.kw - 1,
          .step_w = -1,
          .taps_w = s.kw,
          .backward = true};
}

bool pack_view_takes(const WeightView& v) { return v.kh * v.kw <= kMaxRun; }

size_t packed_view_bytes(const WeightView& v, Isa isa) {
  return align64(packed_b_bytes(v.taps() * v.depth, v.columns, isa)) * static_cast<size_t>(v.groups) + 64;
}

PackedConv packed_view(const WeightView& v, const void* memory, Isa isa) {
  const size_t group = align64(packed_b_bytes(v.taps() * v.depth, v.columns, isa));
  const uintptr_t data = (reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t{63};
  return {reinterpret_cast<const float*>(data), static_cast<int64_t>(group / sizeof(float)), isa, false};
}

PackedConv pack_view(const WeightView& v, void* memory, base::ThreadPool& pool, Isa isa) {
  const DenseKernels& kernels = dense_kernels(isa);
  const int64_t rows = v.taps() * v.depth;
  float* out = reinterpret_cast<float*>(align64(memory));
  const int64_t group_floats = static_cast<int64_t>(align64(packed_b_bytes(rows, v.columns, isa)) / 4);
  base::check(pack_view_takes(v), "weights of ", v.kh * v.kw, " taps are packed ahead only");
  for_panels(v, kernels, rows, pool, [&](const Piece& p, int64_t offset) {
    float* panel = out + p.group * group_floats + offset;
    const size_t bytes = static_cast<size_t>(kernels.width) * sizeof(float);
    if (v.backward && v.kh * v.kw == 1 && p.valid == p.width) {
      for (int64_t d = p.begin; d < p.end; ++d) {
        std::memcpy(panel + d * p.width, v.data + (p.group * v.depth + d) * v.columns + p.column,
                    static_cast<size_t>(p.width) * sizeof(float));
      }
      return;
    }
    for_columns(v, p, kernels, [&](int64_t d, int j, const float* taps) {
      for (int t = 0; t < v.taps(); ++t) {
        float* row = panel + (t * v.depth + d) * p.width + j;
        const float* from = taps + v.source_tap(t) * kernels.width;
        bytes == 64 ? std::memcpy(row, from, 64) : std::memcpy(row, from, bytes);
      }
    });
  });
  return {out, group_floats, isa, false};
}

int64_t winograd_point_floats(int64_t depth, int64_t columns, Isa isa) {
  return static_cast<int64_t>(align64(packed_b_bytes(depth, columns, isa)) / sizeof(float));
}

size_t winograd_view_bytes(const WeightView& v, WinogradTile tile, Isa isa) {
  const size_t side = static_cast<size_t>(tile) + 2;
  return side * side * static_cast<size_t>(winograd_point_floats(v.depth, v.columns, isa)) * sizeof(float) +
         64;
}

PackedWinograd transform_view(const WeightView& v, WinogradTile tile, void* memory, base::ThreadPool& pool,
                              Isa isa) {
  base::check(v.taps() == 9 && v.kh == 3 && v.groups == 1, "only 3 x 3 kernels of one group have this form");
  simd_ready();
  const DenseKernels& kernels = dense_kernels(isa);
  const auto transform = tile == WinogradTile::two ? HWY_DYNAMIC_DISPATCH(transform_taps_two)
                                                   : HWY_DYNAMIC_DISPATCH(transform_taps_four);
  float* out = reinterpret_cast<float*>(align64(memory));
  const int64_t point = winograd_point_floats(v.depth, v.columns, isa);
  const bool past_cache = winograd_view_bytes(v, tile, isa) > kPastCacheBytes && kernels.width == 16;
  for_panels(v, kernels, v.depth, pool, [&](const Piece& p, int64_t offset) {
    for_columns(v, p, kernels, [&](int64_t d, int j, const float* taps) {
      TapsTransform t{.taps = {},
                      .count = kernels.width,
                      .out = out + offset + d * p.width + j,
                      .point_stride = point,
                      .past_cache = past_cache};
      for (int i = 0; i < 9; ++i) t.taps[i] = taps + v.source_tap(i) * kernels.width;
      transform(t);
    });
    // Stores past the cache become visible to the team before the task ends.
    if (past_cache) hwy::FlushStream();
  });
  return {out, point, tile, isa};
}

}  // namespace trireme::cpu
#endif
