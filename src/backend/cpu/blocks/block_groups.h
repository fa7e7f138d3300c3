// Products of groups of rows, each group by a matrix in blocks of its own.
#pragma once

#include <span>

#include "backend/cpu/blocks/block_product.h"
#include "backend/cpu/device/row_groups.h"

namespace trireme::cpu {

/// y [rows, n]: rows of a group times its matrix, plus its bias. `weights`: all matrices, one under the
/// other, each of `n` rows, which are whole groups of kGroupRows; those of no group of rows are not read.
/// x [rows, k], bias [matrices, n] or null.
struct BlockGroups {
  std::span<const RowGroup> groups;
  PackedBlocks weights;
  int64_t n = 0;
  const float *x = nullptr, *bias = nullptr;
  float* y = nullptr;
  bool rounds = true;  ///< rows meet blocks in 8 bits
};

/// Bytes for at most `groups` groups of at most `rows` rows.
int64_t block_groups_workspace(const PackedBlocks& weights, int64_t groups, int64_t rows);

/// The team meets once. A result is what block_products() makes of it, bit for bit.
void block_groups(const BlockGroups& call, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
