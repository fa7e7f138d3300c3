// Internal: the table of 8-bit register tiles that each instruction-set level provides, and their arguments.
#pragma once

#include <cstdint>

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/tiles/depthwise_dot.h"

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

/// Rows of a tall byte tile; tiles of four vectors have half as many.
inline constexpr int kByteRows = 12;

/// One register tile of a product with 8-bit results whose rows lie a constant distance apart, the whole
/// depth at once: a matrix, or with a segment for each kernel row the pixels of a line. a, b and offsets as
/// in QuantTile; |sum * scale| must stay below 2^31.
struct ByteTile {
  const uint8_t* a = nullptr;  // [segments, rows, k] groups of 4 bytes, rows lda bytes apart
  int64_t lda = 0;
  int64_t segments = 1, segment_stride = 1;  // the stride in bytes, not 0
  int64_t k = 0;                             // groups of a segment
  const int32_t* b = nullptr;                // packed [k, panel width]
  int64_t panel_stride = 0;                  // from a panel to the next
  uint8_t* c = nullptr;
  int64_t ldc = 0;
  int n = 0;  // valid columns
  const int32_t* offsets = nullptr;
  const float* scale = nullptr;
  bool output_signed = false;
  int32_t zero = 0, lo = 0, hi = 0;  // quantised values
};
using ByteTileFn = void (*)(const ByteTile&);

struct QuantKernels {
  int tile_rows, width, panel;
  int group;                             // values of k in 32 bits: 4 or 2
  QuantTileFn packed[2][kMaxTileRows];   // [vectors - 1][rows - 1]
  QuantTileFn rows[2][2][kMaxTileRows];  // [signed][vectors - 1][rows - 1], group 4 only
  QuantTileFn line[2][2][kMaxTileRows];  // [stride - 1][vectors - 1][rows - 1], group 4 only
  ByteTileFn bytes[2][3][kByteRows];     // [signed input][vectors / 2][rows - 1] for 1, 2, 4 vectors, or null
  DotBandFn dot_band;                    // or null
  int64_t rows_from_bytes;               // from this depth on `rows` are faster than `bytes`; 0: they are not
  // Pixels of 3 bytes -> 4 bytes, the last one zero, all xor `flip`; or null.
  void (*widen_pixels)(const uint8_t* x, uint8_t* out, int64_t pixels, uint32_t flip);
};

const QuantKernels& quant_kernels_portable();
const QuantKernels& quant_kernels_avx2();
const QuantKernels& quant_kernels_avx512();
const QuantKernels& quant_kernels_avx512_vnni();
const QuantKernels& quant_kernels_amx();
const QuantKernels& quant_kernels(Isa isa);

}  // namespace trireme::cpu
