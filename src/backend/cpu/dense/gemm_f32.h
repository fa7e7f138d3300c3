// f32 matrix products on packed weights, with the epilogue fused: the dense core of every float model.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_epilogue.h"
#include "backend/cpu/tiles/dense_isa.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// A right operand in caller memory: element (k, n) is data[k * ld + n], or data[n * ld + k] when
/// `transposed`.
struct MatrixB {
  const float* data = nullptr;
  int64_t k = 0;
  int64_t n = 0;
  int64_t ld = 0;
  bool transposed = false;
};

/// A right operand rearranged in column panels [n / panel][k][panel] for one level. A view: the caller owns
/// the memory and may share it between any number of products.
struct PackedMatrix {
  const float* data = nullptr;
  int64_t k = 0;
  int64_t n = 0;
  Isa isa = Isa::portable;
};

size_t packed_b_bytes(int64_t k, int64_t n, Isa isa = best_isa());

/// Packs `b` into `memory` (packed_b_bytes, any alignment; 64 is fastest). Reads and writes the matrix once.
PackedMatrix pack_b(const MatrixB& b, void* memory, Isa isa = best_isa());
/// The same with a team, to the same bytes.
PackedMatrix pack_b(const MatrixB& b, void* memory, base::ThreadPool& pool, Isa isa = best_isa());

/// c[m, n] = epilogue(a[m, k] * b[k, n]); rows of a and c are lda and ldc floats apart. c overlaps nothing.
struct GemmArgs {
  int64_t m = 0;
  const float* a = nullptr;
  int64_t lda = 0;
  PackedMatrix b;
  float* c = nullptr;
  int64_t ldc = 0;
  Epilogue epilogue;
};

/// Bytes `gemm` needs; grows with threads, hardly with m.
size_t gemm_workspace_bytes(int64_t m, int64_t k, int64_t n, int threads);

/// Each output is one multiply-add chain in rising k, whatever m, the tiling or the team: same row, same
/// bits.
void gemm(const GemmArgs& args, void* workspace, base::ThreadPool& pool);

/// c_i[m, n] = alpha * a_i[m, k] * b_i[k, n] for i = (outer, inner) in [0, outer) x [0, inner): two batch
/// axes, so that attention reads heads where they lie. Neither operand is packed beforehand. All strides in
/// floats.
struct BatchedGemmArgs {
  int64_t outer = 1, inner = 1;
  int64_t m = 0, k = 0, n = 0;
  const float* a = nullptr;
  int64_t lda = 0, a_outer = 0, a_inner = 0;
  const float* b = nullptr;
  int64_t ldb = 0, b_outer = 0, b_inner = 0;
  bool b_transposed = false;
  float* c = nullptr;
  int64_t ldc = 0, c_outer = 0, c_inner = 0;
  float alpha = 1.0f;
};

size_t gemm_batched_workspace_bytes(int64_t k, int64_t n, int threads);

/// Packs each b_i into the workspace, then runs the register tiles on it; parallel over batches and rows.
void gemm_batched(const BatchedGemmArgs& args, void* workspace, base::ThreadPool& pool, Isa isa = best_isa());

}  // namespace trireme::cpu
