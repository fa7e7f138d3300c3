// Launchers of products with weights that are stored in 8 or 4 bits.
#pragma once

#include <cstdint>

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// y [batch, rows] = x [batch, k] w' + bias; w, scale and zero (or null) as docs/formats.md stores them,
/// bias (or null) of x's type.
struct QuantizedArgs {
  const void* x = nullptr;
  const uint8_t* w = nullptr;
  const float* scale = nullptr;
  const int8_t* zero = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  int64_t rows = 0, k = 0, group = 0;
  int batch = 1;  ///< at most kQuantizedBatch
  int bits = 8;   ///< 8 or 4
};
inline constexpr int kQuantizedBatch = 16;
void quantized_rows(On on, const QuantizedArgs& args);
/// y [count, k] = rows [first, first + count) of the weights as numbers of `on.dtype`.
void dequantize_rows(On on, const QuantizedArgs& args, int64_t first, int64_t count, void* y);

}  // namespace trireme::cuda
