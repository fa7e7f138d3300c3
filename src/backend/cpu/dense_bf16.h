// Internal: the vector kernels of bf16 products.
#pragma once

#include "backend/cpu/dense_kernels.h"

namespace trireme::cpu {

struct Bf16Kernels {
  /// gemm_packed with 32-bit lanes that hold pairs of bf16 along k; k counts pairs; c is f32. transpose moves
  /// lanes.
  DenseKernels tiles;
  /// out[j] = r0[j] | r1[j] << 16 for j < n; r1 null: 0.
  void (*interleave)(const uint16_t* r0, const uint16_t* r1, int64_t n, uint32_t* out);
  /// to[j] = f32 of from[j].
  void (*widen)(const uint16_t* from, int64_t n, float* to);
  /// to[j] = bf16 nearest to from[j], ties to even.
  void (*narrow)(const float* from, int64_t n, uint16_t* to);
  /// to[j] += f32 of from[j].
  void (*add)(const uint16_t* from, int64_t n, float* to);
};

/// Null where this build or the processor has none.
const Bf16Kernels* bf16_kernels();

}  // namespace trireme::cpu
