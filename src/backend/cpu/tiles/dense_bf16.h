// Internal: the vector kernels of bf16 products.
#pragma once

#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {

/// Two neighbouring rows of bf16, the second null at an odd end; `step`: elements between tiles.
struct PairRows {
  const uint16_t *first, *second;
  int64_t step;
};

struct Bf16Kernels {
  /// gemm_packed with 32-bit lanes that hold pairs of bf16 along k; k counts pairs; c is f32. transpose moves
  /// lanes.
  DenseKernels tiles;
  /// What gemm_packed wants done to a packed tile of rows [k, kRowSlots] before it reads it; null: nothing.
  void (*turn)(float* tile, int64_t k) = nullptr;
  /// out[j] = r0[j] | r1[j] << 16 for j < n; r1 null: 0.
  void (*interleave)(const uint16_t* r0, const uint16_t* r1, int64_t n, uint32_t* out);
  /// The same for `count` panels of 32 columns side by side; panel i goes to out + i * stride.
  void (*interleave_panels)(const PairRows& rows, int64_t count, uint32_t* out, int64_t stride);
  /// The same for `count` tiles of 16 columns, `step` apart.
  void (*interleave_tiles)(const PairRows& rows, int64_t count, uint32_t* out, int64_t stride);
  /// to[j] = f32 of from[j].
  void (*widen)(const uint16_t* from, int64_t n, float* to);
  /// to[j] = bf16 nearest to from[j], ties to even.
  void (*narrow)(const float* from, int64_t n, uint16_t* to);
  /// to[j] += f32 of from[j].
  void (*add)(const uint16_t* from, int64_t n, float* to);
};

/// Replaces the product tiles by those of AMX where the processor has them.
void take_matrix_tiles(Bf16Kernels& kernels);

/// Null where this build or the processor has none.
const Bf16Kernels* bf16_kernels();

}  // namespace trireme::cpu
