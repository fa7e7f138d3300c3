// Rows in a block format, packed for products.
#pragma once

#include <cstdint>

#include "backend/cpu/blocks/block_layout.h"
#include "base/threads/thread_pool.h"
#include "tensor/blocks/block_format.h"

namespace trireme::cpu {

/// A packed matrix [n, k]; rows behind the n-th, up to whole groups, are zero. One of floats is the matrix as
/// the file has it, and ends with its n-th row.
struct PackedBlocks {
  const uint8_t* data = nullptr;
  int format = 0;  ///< index of tensor::all_block_formats(), and of kBlockLayouts
  int64_t n = 0, k = 0;

  const BlockLayout& layout() const { return kBlockLayouts[format]; }
  int64_t groups() const { return (n + kGroupRows - 1) / kGroupRows; }
  int64_t blocks() const { return k / layout().weights(); }
  int64_t group_bytes() const { return blocks() * layout().bytes(); }
};

/// Index of a format of tensor::all_block_formats().
int block_format_index(const tensor::BlockFormat& format);

/// What a matrix takes packed: the bytes of its rows, up to 4 % more where scales have 6 bits; floats take
/// nothing.
int64_t packed_block_bytes(const tensor::BlockFormat& format, int64_t n, int64_t k);

/// Rows of a matrix as a file has them: [n, format->row_bytes(k)].
struct BlockRowsOfFile {
  const tensor::BlockFormat* format = nullptr;
  const uint8_t* rows = nullptr;
  int64_t n = 0, k = 0;
};

/// Packs them into `memory`; floats are read where they are.
PackedBlocks pack_blocks(const BlockRowsOfFile& from, uint8_t* memory, base::ThreadPool& pool);

/// Row `row` of a packed matrix as f32 [k]: the bits that the format's decoder gives.
void unpack_row(const PackedBlocks& from, int64_t row, float* out);

}  // namespace trireme::cpu
