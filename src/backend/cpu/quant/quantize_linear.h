// Linear quantisation between f32 and 8-bit integers: per tensor, per axis, per row, static or from the
// data's range.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

enum class QuantType : uint8_t { u8, i8 };

struct QuantizeLinear {
  const float* x;  // [outer, axis, inner]
  void* y;         // same shape, u8 or i8
  QuantType type = QuantType::u8;
  const float* scale;                // [axis]; axis = 1 is per tensor
  const void* zero_point = nullptr;  // [axis] of the type of y, or none: 0
  int64_t outer = 1;
  int64_t axis = 1;
  int64_t inner = 0;
};

/// y = saturate(round_half_even(x / scale) + zero_point), ONNX QuantizeLinear. NaN gives the zero point.
/// 5 bytes, 6 flop per element.
void quantize_linear(const QuantizeLinear& args, base::ThreadPool& pool);

struct DequantizeLinear {
  const void* x;  // [outer, axis, inner], u8, i8 or i32
  float* y;
  enum class Type : uint8_t { u8, i8, i32 } type = Type::u8;
  const float* scale;                // [axis]
  const void* zero_point = nullptr;  // [axis] of the type of x, or none: 0
  int64_t outer = 1;
  int64_t axis = 1;
  int64_t inner = 0;
};

/// y = (x - zero_point) * scale, the difference exact. 5 bytes (i32: 8), 2 flop per element.
void dequantize_linear(const DequantizeLinear& args, base::ThreadPool& pool);

struct QuantParams {
  float scale;
  uint8_t zero_point;
};

/// Scale and zero point that cover [min(x, 0), max(x, 0)] with u8: ONNX DynamicQuantizeLinear. All zero, or
/// any NaN: scale 1, zero point 0. An infinite range has an infinite scale. One read of x.
QuantParams dynamic_quantize_params(const float* x, int64_t n, base::ThreadPool& pool);

/// dynamic_quantize_params, then quantize_linear to u8. 9 bytes, 8 flop per element; x is read twice.
QuantParams dynamic_quantize(const float* x, uint8_t* y, int64_t n, base::ThreadPool& pool);

}  // namespace trireme::cpu
