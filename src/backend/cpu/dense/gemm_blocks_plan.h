// Internal: how a product of two changing operands is cut into tasks, for every element type.
#pragma once

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/dense/gemm_blocks.h"

namespace trireme::cpu {

/// Tiles of a [tiles, depth, 16] packed at a time: they fill half of a 1 MiB second-level cache.
inline constexpr int64_t kBlockGroupTiles = 12;

/// Tasks are batches x m_blocks x n_blocks; tiles of nearly equal height.
struct BlockGrid {
  int64_t tiles = 1, panels = 1, depth = 0;  // depth: of one packed block
  int64_t m_blocks = 1, n_blocks = 1, block_panels = 1;
  size_t b_bytes = 0, lane_bytes = 0;
};

/// Floats from one packed panel or tile to the next: a line or two more than they hold, so that the same row
/// of all of them does not fall into one set of a cache.
constexpr int64_t packed_panel(int64_t depth, int width) { return depth * width + 32; }
constexpr int64_t packed_tile(int64_t depth) { return depth * kRowSlots + kRowSlots; }

/// Tiles [first, last).
struct BlockTiles {
  int64_t first, last;
};

/// A packed tile or panel [depth, width].
struct PackedBlock {
  const float* data;
  int width;
  int64_t depth;
};

struct BlockLimits {
  int threads = 1;
  int64_t task_floats = 0;  ///< most results of a task; 0: any number
};

BlockGrid plan_blocks(const BlockProduct& product, const DenseKernels& kernels, BlockLimits limits);

}  // namespace trireme::cpu
