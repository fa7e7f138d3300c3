// Conversion between element types with ONNX's rounding: nearest even between floats, truncation to integers.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"
#include "tensor/dtype.h"

namespace trireme::cpu {

struct Cast {
  const void* x;
  tensor::DType from = tensor::DType::f32;
  void* y;
  tensor::DType to = tensor::DType::f32;
  int64_t n = 0;
  bool saturate = true;  // only for 8-bit floats, see float8_encode
};

/// y[i] = x[i] in the type `to`. Float to narrower float: one rounding, nearest even, overflow to infinity.
/// Float to integer: truncated, clamped to the type's range, NaN gives 0. Integer to integer: low bits.
/// To bool: x != 0 (NaN is true). Pairs of f32, bool and integers of up to 64 bits, and f32 <-> f16, bf16,
/// have loops of their own; 16-bit floats reach other types through f32; what is left goes through a double
/// or 64-bit tile in L1. Bytes: the two element sizes. Throws unsupported for types below one byte and
/// f8e8m0.
void cast(const Cast& args, base::ThreadPool& pool);

/// The two 16-bit forms on the calling thread, for kernels that convert as they read.
void f16_to_f32(const uint16_t* x, float* y, size_t n);
void f32_to_f16(const float* x, uint16_t* y, size_t n);
void bf16_to_f32(const uint16_t* x, float* y, size_t n);
void f32_to_bf16(const float* x, uint16_t* y, size_t n);

}  // namespace trireme::cpu
