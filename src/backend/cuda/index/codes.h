// Launchers of conversions from and to element types without arithmetic: 8- and 4-bit floats, integers of
// less than a byte.
#pragma once

#include "backend/cuda/device/on.h"
#include "backend/cuda/quant/quantize.h"
#include "tensor/small_float_math.h"

namespace trireme::cuda {

/// True for types that are converted here: all but complex numbers.
bool has_codes(tensor::DType dtype);

/// y[i] = x[i] as another type, as the CPU's cast.
struct CodeCast {
  const void* x = nullptr;
  void* y = nullptr;
  tensor::DType from = tensor::DType::f32, to = tensor::DType::f32;
  bool saturate = true;
  tensor::ScaleRounding rounding = tensor::ScaleRounding::up;
  int64_t n = 0;
};
void cast_codes(tensor::Stream& stream, const CodeCast& args);

/// quantize_linear and dequantize_linear between any types; `zero` is of the type of the codes, or null.
struct CodeQuantize {
  const void *x = nullptr, *scale = nullptr, *zero = nullptr;
  void* y = nullptr;
  tensor::DType from = tensor::DType::f32, scale_type = tensor::DType::f32, to = tensor::DType::u8;
  /// Type that quotients are rounded to: f64, f32, f16 or bf16.
  tensor::DType precision = tensor::DType::f32;
  bool saturate = true;
  ScaleLayout layout;
};
void quantize_codes(tensor::Stream& stream, const CodeQuantize& args);
void dequantize_codes(tensor::Stream& stream, const CodeQuantize& args);

}  // namespace trireme::cuda
