// The 8- and 4-bit float formats, described by one table.
#include "ops/elementwise/small_float.h"

#include <bit>
#include <cmath>
#include <limits>

namespace trireme::ops {
namespace {

using tensor::DType;

struct Format {
  int mantissa_bits;
  int bias;
  uint8_t largest;   // code of the largest finite value
  uint8_t nan;       // code of NaN; 0 means none
  uint8_t infinity;  // code of +infinity; 0 means none
  uint8_t sign;      // the sign bit
  bool has_negative_zero;
};

Format format_of(DType type) {
  switch (type) {
    case DType::f8e4m3fn: return {3, 7, 0x7e, 0x7f, 0, 0x80, true};
    case DType::f8e4m3fnuz: return {3, 8, 0x7f, 0x80, 0, 0x80, false};
    case DType::f8e5m2: return {2, 15, 0x7b, 0x7e, 0x7c, 0x80, true};
    case DType::f8e5m2fnuz: return {2, 16, 0x7f, 0x80, 0, 0x80, false};
    default: return {1, 1, 0x7, 0, 0, 0x8, true};  // f4e2m1
  }
}

uint8_t encode_scale(float x, bool saturate, ScaleRounding rounding) {
  if (std::isnan(x) || x < 0) return 0xff;
  if (std::isinf(x)) return saturate ? 0xfe : 0xff;
  if (x == 0) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  uint32_t exponent = bits >> 23;
  const uint32_t mantissa = bits & 0x7fffffu;
  const bool is_subnormal = exponent == 0;
  // 2^-127, code 0, is the subnormal with the top mantissa bit alone.
  if (is_subnormal && mantissa <= 0x400000u) return 0;
  if (is_subnormal) return rounding == ScaleRounding::down ? 0 : 1;
  bool raises = false;
  if (rounding == ScaleRounding::up) raises = mantissa != 0;
  if (rounding == ScaleRounding::nearest) raises = mantissa >= 0x400000u;
  exponent += raises ? 1 : 0;
  if (exponent > 0xfe) return saturate ? 0xfe : 0xff;
  return static_cast<uint8_t>(exponent);
}

}  // namespace

float decode_small_float(DType type, uint8_t code) {
  if (type == DType::f8e8m0) {
    return code == 0xff ? std::numeric_limits<float>::quiet_NaN()
                        : std::ldexp(1.0f, static_cast<int>(code) - 127);
  }
  const Format f = format_of(type);
  const uint8_t magnitude = code & static_cast<uint8_t>(f.sign - 1);
  const bool is_negative = (code & f.sign) != 0;
  if (f.nan != 0 &&
      (f.has_negative_zero ? magnitude > (f.infinity != 0 ? f.infinity : f.largest) : code == f.nan)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (f.infinity != 0 && magnitude == f.infinity) {
    return is_negative ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  const int exponent = magnitude >> f.mantissa_bits;
  const int mantissa = magnitude & ((1 << f.mantissa_bits) - 1);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - f.bias - f.mantissa_bits)
                                    : std::ldexp(static_cast<float>(mantissa + (1 << f.mantissa_bits)),
                                                 exponent - f.bias - f.mantissa_bits);
  return is_negative ? -value : value;
}

uint8_t encode_small_float(DType type, float x, bool saturate, ScaleRounding rounding) {
  if (type == DType::f8e8m0) return encode_scale(x, saturate, rounding);
  const Format f = format_of(type);
  const uint8_t sign = std::signbit(x) ? f.sign : 0;
  // f4e2m1 has no NaN: -0, as the ml_dtypes package does.
  if (std::isnan(x)) return f.nan == 0 ? f.sign : f.nan | (f.has_negative_zero ? sign : 0);
  const float magnitude = std::fabs(x);
  uint8_t code = f.largest;
  bool is_over = std::isinf(magnitude);
  if (!is_over) {
    // Scaled so that the last kept bit is worth one: nearbyint does the rounding, in the default mode half to
    // even.
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    exponent = std::max(exponent - 1, 1 - f.bias);
    if (magnitude == 0) exponent = 1 - f.bias;
    const float kept = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
    // An integer in [0, 2^(mantissa_bits+1)]; carrying into the exponent is plain addition of codes.
    const int wide = ((exponent + f.bias - 1) << f.mantissa_bits) + static_cast<int>(kept);
    is_over = wide > f.largest;
    if (!is_over) code = static_cast<uint8_t>(wide);
  }
  if (is_over && !saturate && f.nan != 0) {
    if (f.infinity != 0) return f.infinity | sign;
    return f.has_negative_zero ? f.nan | sign : f.nan;
  }
  if (code == 0 && !f.has_negative_zero) return 0;
  return code | sign;
}

}  // namespace trireme::ops
