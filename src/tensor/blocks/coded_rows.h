// Rows of 8-bit codes with a scale: the form in which caches keep keys and values in 8 bits.
#pragma once

#include "tensor/dtype.h"

namespace trireme::tensor {

/// Whether rows of a type are codes: i8 or f8e4m3fn. Behind the codes of a row lies their scale, an f32, so a
/// value is its code times the scale; the scale is the largest magnitude of the row over the largest code.
constexpr bool holds_codes(DType type) { return type == DType::i8 || type == DType::f8e4m3fn; }

/// The largest code that rows are scaled to.
constexpr float largest_code(DType type) { return type == DType::i8 ? 127.0f : 448.0f; }

/// Elements that a row of `n` values takes.
constexpr int64_t row_elements(DType type, int64_t n) {
  return holds_codes(type) ? n + static_cast<int64_t>(sizeof(float)) : n;
}
inline int64_t row_bytes(DType type, int64_t n) { return bytes_of(type, row_elements(type, n)); }

}  // namespace trireme::tensor
