// The four 8-bit float formats of ONNX: encode with round to nearest even, decode exactly.
#pragma once

#include <cstdint>

namespace trireme::cpu {

enum class Float8 : uint8_t {
  e4m3fn,    // bias 7, no infinity, NaN 0x7F, largest 448
  e4m3fnuz,  // bias 8, no infinity, no -0, NaN 0x80, largest 240
  e5m2,      // bias 15, infinity 0x7C, NaN 0x7F, largest 57344
  e5m2fnuz,  // bias 16, no infinity, no -0, NaN 0x80, largest 57344
};

/// Rounds to the nearest code, ties to even. Beyond the largest value (infinities included): the largest
/// value of that sign if saturate, else infinity (e5m2) or NaN (the others). NaN stays NaN. Source: ONNX,
/// "Float stored in 8 bits".
uint8_t float8_encode(Float8 format, float x, bool saturate);

/// The value of a code, exact.
float float8_decode(Float8 format, uint8_t code);

}  // namespace trireme::cpu
