// Internal: the table of 8-bit register tiles that each instruction-set level provides, and their arguments.
#pragma once

#include <cstdint>

#include "backend/cpu/dense_kernels.h"
#include "backend/cpu/qgemm_s8.h"

namespace trireme::cpu {

/// One register tile over 32-bit groups of k, the whole depth at once: c[rows, n] = requantise(dot(a, b)).
struct QuantTile {
  const int32_t* a = nullptr;            // packed [k, kRowSlots] groups, or null
  const int32_t* const* rows = nullptr;  // [segments, kRowSlots] pointers, used when a is null
  int segments = 0;
  int64_t length = 0;          // groups per segment
  int64_t k = 0;               // groups in all
  const int32_t* b = nullptr;  // packed [k, panel width]
  void* c = nullptr;
  int64_t ldc = 0;
  int n = 0;
  QuantOutput output = QuantOutput::s32;
  const int32_t* offsets = nullptr;      // [n]
  const int32_t* row_factors = nullptr;  // [n] or null
  const int32_t* row_sums = nullptr;     // [rows], with row_factors
  const float* scale = nullptr;          // [n]
  int32_t zero = 0;
  float lo = 0, hi = 0;             // u8, s8: minus zero; f32: real values
  const float* bias = nullptr;      // f32
  const float* residual = nullptr;  // f32, like c
  bool act_before_residual = false;
};
using QuantTileFn = void (*)(const QuantTile&);

struct QuantKernels {
  int tile_rows, width, panel;
  int group;                             // values of k in 32 bits: 4 or 2
  QuantTileFn packed[2][kMaxTileRows];   // [vectors - 1][rows - 1]
  QuantTileFn rows[2][2][kMaxTileRows];  // [signed][vectors - 1][rows - 1], group 4 only
  QuantTileFn line[2][2][kMaxTileRows];  // [stride - 1][vectors - 1][rows - 1], group 4 only
};

const QuantKernels& quant_kernels_portable();
const QuantKernels& quant_kernels_avx2();
const QuantKernels& quant_kernels_avx512();
const QuantKernels& quant_kernels_avx512_vnni();
const QuantKernels& quant_kernels(Isa isa);

}  // namespace trireme::cpu
