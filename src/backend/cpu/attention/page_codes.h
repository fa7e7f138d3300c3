// Keys and values in 8 bits: the codes of a row and their scale.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace trireme::cpu {

/// Writes x [n] as codes of i8 or f8e4m3fn, rounded to nearest even, and behind them their scale, an f32: the
/// largest magnitude over 127 or 448. `to` has room for n + 4 bytes. The scale of a row with an infinity or
/// NaN is NaN, so that the row is read as NaN; a row whose scale would be subnormal becomes 0.
void encode_row(const float* x, tensor::DType type, void* to, size_t n);

}  // namespace trireme::cpu
