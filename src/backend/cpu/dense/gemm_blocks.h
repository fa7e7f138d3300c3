// f32 products of two operands that both change from run to run, each read in either orientation: what
// training multiplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_epilogue.h"
#include "backend/cpu/tiles/dense_isa.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// One operand as it lies: element (row, column) at data[row * ld + column], or at data[column * ld + row]
/// when `transposed`. Batch (i, j) starts i * outer + j * inner further on.
struct BlockOperand {
  const float* data = nullptr;
  int64_t ld = 0;
  bool transposed = false;
  int64_t outer = 0, inner = 0;
};

/// c[m, n] = epilogue(a[m, k] * b[k, n]) for each of outer * inner batches. Strides in floats; c overlaps
/// nothing.
struct BlockProduct {
  int64_t outer = 1, inner = 1;
  int64_t m = 0, k = 0, n = 0;
  BlockOperand a, b;
  float* c = nullptr;
  int64_t ldc = 0, c_outer = 0, c_inner = 0;
  Epilogue epilogue;             // bias [n] and residual (like c) of single products only
  float* row_sums = nullptr;     // [m] or null: sum over k of a(row, k), single products only
  float* column_sums = nullptr;  // [n] or null: sum over k of b(k, column)
  Isa isa = best_isa();
};

/// Bytes `gemm_blocks` needs for products of these extents.
size_t gemm_blocks_workspace_bytes(const BlockProduct& product, int threads);

/// Packs blocks of both operands into the caches and multiplies them there: an operand is read from memory
/// once or a few times, and nothing the size of an operand is written. Each output is a sum over blocks of
/// depth, each block one multiply-add chain in rising k; blocks depend on k alone, so neither tiling nor team
/// changes a bit. Row and column sums likewise.
void gemm_blocks(const BlockProduct& product, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
