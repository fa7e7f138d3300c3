// bf16 products with f32 sums on processors that multiply bf16, both operands read in either orientation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/tiles/dense_epilogue.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// True if the processor has AVX-512 with bf16 dot products.
bool has_bf16_products();

/// One operand as it lies, bits of bf16: element (row, column) at data[row * ld + column], or at
/// data[column * ld + row] when `transposed`.
struct Bf16Operand {
  const uint16_t* data = nullptr;
  int64_t ld = 0;
  bool transposed = false;
};

/// c[m, n] = epilogue(a[m, k] * b[k, n]), rounded once to bf16, or f32 as it was summed.
struct Bf16Product {
  int64_t m = 0, k = 0, n = 0;
  Bf16Operand a, b;
  const float* packed_b = nullptr;  // b by pack_bf16_columns, then b itself is not read; or null
  void* c = nullptr;
  int64_t ldc = 0;
  const uint16_t* bias = nullptr;      // [n] or null
  const uint16_t* residual = nullptr;  // like c, or null
  Epilogue epilogue;                   // the activation; its pointers are not read
  void* row_sums = nullptr;            // [m] or null: sum over k of a(row, k), of the type of c
  void* column_sums = nullptr;         // [n] or null
  bool is_wide = false;                // c and the sums are f32
};

/// Floats that b [k, n] takes as gemm_bf16 reads it: two bytes an element and a little. Made once for weights
/// that stay: a product of few rows then takes the time of reading them. The same bits as without.
int64_t packed_bf16_floats(int64_t k, int64_t n);
void pack_bf16_columns(const Bf16Operand& b, int64_t k, int64_t n, float* packed);

size_t gemm_bf16_workspace_bytes(const Bf16Product& product, int threads);

/// Like gemm_blocks with twice the multiply-adds per instruction: pairs of neighbouring k are added to the
/// f32 sum at once, subnormal operands count as 0. Only where has_bf16_products().
void gemm_bf16(const Bf16Product& product, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
