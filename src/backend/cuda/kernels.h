// Launchers of the device's kernels, for ops: host functions with the addresses and extents of one launch.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Where a launch goes and what its elements are: f32, f16 or bf16.
struct On {
  tensor::Stream& stream;
  tensor::DType dtype = tensor::DType::f32;
};

/// See row_kernels.h. [rows, n, inner], the first 16-byte aligned; along n. `log`: the logarithm.
struct SoftmaxArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t rows = 0, n = 0, inner = 1;
  bool log = false;
};
void softmax(On on, const SoftmaxArgs& args);
/// dx in y from dy and the result, which is x.
void softmax_grad(On on, const SoftmaxArgs& args, const void* dy);

struct DropoutArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t n = 0;
  uint64_t first = 0, seed = 0, stream = 0;
  uint32_t threshold = 0;
  float scale = 1;
};
void dropout(On on, const DropoutArgs& args);

/// y [batch, columns, rows] = x [batch, rows, columns] transposed.
void transpose(On on, const void* x, void* y, const int64_t (&extents)[3]);

struct GatherArgs {
  const void* table = nullptr;
  const int64_t* index = nullptr;
  void* y = nullptr;
  int64_t count = 0, n = 0, first = 0, held = 0;
};
void gather_rows(On on, const GatherArgs& args);

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
