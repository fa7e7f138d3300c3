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

/// w: see decode_kernels.h.
struct QuantizedArgs {
  const void* x = nullptr;
  const uint8_t* w = nullptr;
  const float* scale = nullptr;
  void* y = nullptr;
  int64_t rows = 0, k = 0, group = 0;
  int batch = 1;  ///< at most 8
  int bits = 8;   ///< 8 or 4
};
void quantized_rows(On on, const QuantizedArgs& args);

}  // namespace trireme::cuda
