// The sum of two 8-bit tensors with scales, requantised: the residual connection of integer networks.
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// y = clamp(round_half_even(a * a_factor + b * b_factor + shift), lowest, highest); the bounds are quantised
/// values inside the type's range. a, b and y are all u8, or all i8 (`is_signed`).
struct QuantizedAdd {
  const void* a;
  const void* b;
  void* y;
  int64_t n = 0;
  bool is_signed = false;
  float a_factor = 1, b_factor = 1, shift = 0;
  float lowest = 0, highest = 255;
};

/// 3 bytes, 4 flop per element.
void quantized_add(const QuantizedAdd& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
