// Launchers of quantization: f32 to 8-bit integers and back.
#pragma once

#include <cstdint>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Which scale belongs to an element of [outer, n, inner]: one for all (`n` 1, `inner` all), one an index of
/// the axis, or one for `block` neighbours along it: scales [outer, blocks, inner].
struct ScaleLayout {
  int64_t elements = 0, n = 1, inner = 1, block = 0, blocks = 0;
  bool is_single = false;
};

/// quantized: u8 or i8 (i32 for dequantize). zero: of the same type, or null.
struct QuantizeArgs {
  const void* from = nullptr;
  void* to = nullptr;
  const float* scale = nullptr;
  const void* zero = nullptr;
  tensor::DType quantized = tensor::DType::u8;
  ScaleLayout layout;
};
/// to = saturate(round_half_even(from / scale) + zero).
void quantize_linear(tensor::Stream& stream, const QuantizeArgs& args);
/// to = (from - zero) scale.
void dequantize_linear(tensor::Stream& stream, const QuantizeArgs& args);

}  // namespace trireme::cuda
