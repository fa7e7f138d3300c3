// The 8- and 4-bit float formats: exact decoding, and encoding with round to nearest even, saturation or not.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace trireme::ops {

/// Value of a code of an 8-bit float type or f4e2m1.
float decode_small_float(tensor::DType type, uint8_t code);

/// How f8e8m0 (powers of two only) rounds.
enum class ScaleRounding : uint8_t { up, down, nearest };

/// Code of the nearest value, halves to even. Out of range and infinity: the largest value if `saturate`,
/// else infinity where the type has one, else NaN. f4e2m1 has neither and always saturates.
uint8_t encode_small_float(tensor::DType type, float x, bool saturate,
                           ScaleRounding rounding = ScaleRounding::up);

}  // namespace trireme::ops
