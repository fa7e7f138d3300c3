// Packs columns and runs register tiles over them.
#include "backend/cpu/dense/gemm_tn.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dense/gemm_tn.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// Rows fetched ahead of the copy: enough lines to hide the memory behind them.
constexpr int64_t kAhead = 16;

/// One panel of `valid` columns.
HWY_INLINE void copy_panel(const ColumnCopy& c, int64_t column, float* to) {
  const int64_t lanes = static_cast<int64_t>(kLanes);
  const int64_t valid = std::min<int64_t>(c.width, c.columns - column);
  const float* from = c.from == nullptr ? nullptr : c.from + column;
  if (from == nullptr) {
    std::memset(to, 0, static_cast<size_t>(c.rows * c.width) * sizeof(float));
  } else if (valid == c.width && c.width == 2 * lanes) {
    for (int64_t i = 0; i < c.rows; ++i, from += c.stride, to += 2 * lanes) {
      __builtin_prefetch(from + kAhead * c.stride, 0, 2);
      __builtin_prefetch(from + kAhead * c.stride + lanes, 0, 2);
      const VF a = hn::LoadU(kF, from), b = hn::LoadU(kF, from + lanes);
      hn::StoreU(a, kF, to);
      hn::StoreU(b, kF, to + lanes);
    }
  } else if (valid == c.width && c.width == lanes) {
    for (int64_t i = 0; i < c.rows; ++i, from += c.stride, to += lanes) {
      __builtin_prefetch(from + kAhead * c.stride, 0, 2);
      hn::StoreU(hn::LoadU(kF, from), kF, to);
    }
  } else {
    for (int64_t i = 0; i < c.rows; ++i, from += c.stride, to += c.width) {
      std::memcpy(to, from, static_cast<size_t>(valid) * sizeof(float));
      for (int64_t j = valid; j < c.width; ++j) to[j] = 0.0f;
    }
  }
}

/// A few rows at a time: as many streams as the processor foresees, each read once while it is near.
void copy_all(const ColumnCopy& c) {
  constexpr int64_t kStep = 8;
  ColumnCopy part = c;
  for (int64_t row = 0; row < c.rows; row += kStep) {
    part.rows = std::min(kStep, c.rows - row);
    part.from = c.from == nullptr ? nullptr : c.from + row * c.stride;
    float* to = c.to + (c.first + row) * c.width;
    for (int64_t column = 0; column < c.columns; column += c.width, to += c.rows_total * c.width) {
      const bool narrow = c.columns - column <= c.narrow;
      part.width = narrow ? c.narrow : c.width;
      copy_panel(part, column, narrow ? to - (c.first + row) * (c.width - c.narrow) : to);
    }
  }
}

void add_into(const float* x, float* y, int64_t n) {
  int64_t i = 0;
  const int64_t lanes = static_cast<int64_t>(kLanes);
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(kF, y + i), hn::LoadU(kF, x + i)), kF, y + i);
  for (; i < n; ++i) y[i] += x[i];
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(copy_all);
HWY_EXPORT(add_into);

void copy_columns(const ColumnCopy& copy) { HWY_DYNAMIC_DISPATCH(copy_all)(copy); }

void multiply_tn(const TnBlock& t, const DenseKernels& kernels) {
  GemmTile tile;
  tile.k = t.k;
  tile.ldc = t.ldc;
  // What is there is added to the finished sum: short chains round less than one long one.
  tile.finish = t.accumulate;
  tile.lo = -std::numeric_limits<float>::infinity();
  tile.hi = std::numeric_limits<float>::infinity();
  for (int64_t n = 0; n < t.n; n += kernels.panel) {
    tile.n = static_cast<int>(std::min<int64_t>(kernels.panel, t.n - n));
    tile.b = t.b + n * t.k;
    const auto& tiles = kernels.gemm_packed[tile.n > kernels.width || t.whole_panels ? 1 : 0];
    for (int64_t m16 = 0; m16 < t.m; m16 += kTnRows) {
      const int64_t rows = std::min<int64_t>(kTnRows, t.m - m16);
      // Two tiles of eight rows reach the same rate as taller ones, and leave the packed rows in whole
      // vectors.
      const int64_t parts = (rows + kernels.tile_rows - 1) / kernels.tile_rows;
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t first = rows * i / parts, last = rows * (i + 1) / parts;
        tile.a = t.a + m16 * t.k + first;
        tile.c = t.c + (m16 + first) * t.ldc + n;
        tile.residual = t.accumulate ? tile.c : nullptr;
        tiles[last - first - 1](tile);
      }
    }
  }
}

void sum_tree(float* parts, int64_t count, int64_t stride, int64_t begin, int64_t end) {
  for (int64_t step = 1; step < count; step *= 2) {
    for (int64_t i = 0; i + step < count; i += 2 * step) HWY_DYNAMIC_DISPATCH(add_into)
    (parts + (i + step) * stride + begin, parts + i * stride + begin, end - begin);
  }
}

}  // namespace trireme::cpu
#endif
