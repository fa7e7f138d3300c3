// Internal: what each instruction-set level provides for products of weights in blocks.
#pragma once

#include <cstdint>

#include "backend/cpu/blocks/block_layout.h"
#include "backend/cpu/tiles/dense_isa.h"

namespace trireme::cpu {

/// Rows of x that a tile takes at most.
inline constexpr int kBlockTileRows = 8;

/// Rows of x as products read them. Of rows in 8 bits: `codes` [m, k], of 32 neighbours one scale; `starts`
/// [m, k / part] minus the layout's zero times the sum of a part's codes; `sums` [m, k / part] the sum of its
/// numbers, where the layout has leasts. Of f32 rows: x itself and the sums. Of rows that meet bf16: `codes`
/// alone, in the order of float_tile.inc.
struct BlockRowsView {
  const float* x = nullptr;       // [m, k]
  const int8_t* codes = nullptr;  // [m, k]
  const float* scales = nullptr;  // [m, k / 32]
  const int32_t* starts = nullptr;
  const float* sums = nullptr;
  int64_t k = 0;
};

/// y [rows, 16] of one group of packed weights, or [rows, 32] of two.
struct BlockTile {
  const uint8_t* w = nullptr;   // the group
  int64_t blocks = 0;           // of a row
  BlockRowsView x;              // from the tile's first row on
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;
  int64_t ldy = 0;
  int n = 16;  // valid columns
};
using BlockTileFn = void (*)(const BlockTile&);

/// Where the view of one row is written.
struct BlockRowOut {
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int32_t* starts = nullptr;
  float* sums = nullptr;
};
/// One row x [k] to codes, scales, starts and sums; or, of f32 rows, to sums alone.
using BlockRowFn = void (*)(const float* x, int64_t k, const BlockRowOut& out);

/// How many tile heights a table has: 1, 2, 4 and 8 rows.
inline constexpr int kBlockTileHeights = 4;

struct BlockKernels {
  BlockTileFn rounded[kBlockLayoutCount][kBlockTileHeights];
  BlockTileFn f32[kBlockLayoutCount][kBlockTileHeights];
  BlockTileFn rounded_pair[kBlockLayoutCount][kBlockTileHeights];  ///< two groups; or null
  BlockRowFn rounded_row[kBlockLayoutCount];
  BlockRowFn f32_row[kBlockLayoutCount];
};

/// Products of bf16 rows with bf16 weights by dot products of pairs; null where this build or the processor
/// has none. AMD's do twice as much as multiply-adds of f32, Intel's half.
const BlockKernels* block_kernels_bf16();

const BlockKernels& block_kernels_portable();
const BlockKernels& block_kernels_avx2();
const BlockKernels& block_kernels_avx512();
const BlockKernels& block_kernels_avx512_vnni();  ///< products of bytes alone
const BlockKernels& block_kernels(Isa isa);

}  // namespace trireme::cpu
