// The 8- and 4-bit float formats, for host and device: exact decoding, and encoding with round to nearest
// even, saturation or not.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tensor/dtype.h"
#include "tensor/element_math.h"

namespace trireme::tensor {

/// How f8e8m0 (powers of two only) rounds.
enum class ScaleRounding : uint8_t { up, down, nearest };

namespace small_float {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Format {
  int mantissa_bits;
  int bias;
  uint8_t largest;   // code of the largest finite value
  uint8_t nan;       // code of NaN; 0 means none
  uint8_t infinity;  // code of +infinity; 0 means none
  uint8_t sign;      // the sign bit
  bool has_negative_zero;
};

TRIREME_HD inline Format format_of(DType type) {
  switch (type) {
    case DType::f8e4m3fn: return {3, 7, 0x7e, 0x7f, 0, 0x80, true};
    case DType::f8e4m3fnuz: return {3, 8, 0x7f, 0x80, 0, 0x80, false};
    case DType::f8e5m2: return {2, 15, 0x7b, 0x7e, 0x7c, 0x80, true};
    case DType::f8e5m2fnuz: return {2, 16, 0x7f, 0x80, 0, 0x80, false};
    default: return {1, 1, 0x7, 0, 0, 0x8, true};  // f4e2m1
  }
}

TRIREME_HD inline uint32_t bits_of(float x) {
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

TRIREME_HD inline uint8_t encode_scale(float x, bool saturate, ScaleRounding rounding) {
  if (x != x || x < 0) return 0xff;
  if (x == kInfinity) return saturate ? 0xfe : 0xff;
  if (x == 0) return 0;
  const uint32_t bits = bits_of(x);
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

}  // namespace small_float

/// Value of a code of an 8-bit float type or f4e2m1.
TRIREME_HD inline float decode_small_float(DType type, uint8_t code) {
  if (type == DType::f8e8m0) {
    return code == 0xff ? small_float::kNan : std::ldexp(1.0f, static_cast<int>(code) - 127);
  }
  const small_float::Format f = small_float::format_of(type);
  const uint8_t magnitude = code & static_cast<uint8_t>(f.sign - 1);
  const bool is_negative = (code & f.sign) != 0;
  if (f.nan != 0 &&
      (f.has_negative_zero ? magnitude > (f.infinity != 0 ? f.infinity : f.largest) : code == f.nan)) {
    return small_float::kNan;
  }
  if (f.infinity != 0 && magnitude == f.infinity) {
    return is_negative ? -small_float::kInfinity : small_float::kInfinity;
  }
  const int exponent = magnitude >> f.mantissa_bits;
  const int mantissa = magnitude & ((1 << f.mantissa_bits) - 1);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - f.bias - f.mantissa_bits)
                                    : std::ldexp(static_cast<float>(mantissa + (1 << f.mantissa_bits)),
                                                 exponent - f.bias - f.mantissa_bits);
  return is_negative ? -value : value;
}

/// Code of the nearest value, halves to even. Out of range and infinity: the largest value if `saturate`,
/// else infinity where the type has one, else NaN. f4e2m1 has neither and always saturates.
TRIREME_HD inline uint8_t encode_small_float(DType type, float x, bool saturate,
                                             ScaleRounding rounding = ScaleRounding::up) {
  if (type == DType::f8e8m0) return small_float::encode_scale(x, saturate, rounding);
  const small_float::Format f = small_float::format_of(type);
  const uint8_t sign = (small_float::bits_of(x) >> 31) != 0 ? f.sign : uint8_t{0};
  // f4e2m1 has no NaN: -0, as the ml_dtypes package does.
  if (x != x) return f.nan == 0 ? f.sign : static_cast<uint8_t>(f.nan | (f.has_negative_zero ? sign : 0));
  const float magnitude = std::fabs(x);
  uint8_t code = f.largest;
  bool is_over = magnitude == small_float::kInfinity;
  if (!is_over) {
    // Scaled so that the last kept bit is worth one: nearbyint does the rounding, in the default mode half to
    // even.
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    exponent = exponent - 1 > 1 - f.bias ? exponent - 1 : 1 - f.bias;
    if (magnitude == 0) exponent = 1 - f.bias;
    const float kept = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
    // An integer in [0, 2^(mantissa_bits+1)]; carrying into the exponent is plain addition of codes.
    const int wide = ((exponent + f.bias - 1) << f.mantissa_bits) + static_cast<int>(kept);
    is_over = wide > f.largest;
    if (!is_over) code = static_cast<uint8_t>(wide);
  }
  if (is_over && !saturate && f.nan != 0) {
    if (f.infinity != 0) return static_cast<uint8_t>(f.infinity | sign);
    return f.has_negative_zero ? static_cast<uint8_t>(f.nan | sign) : f.nan;
  }
  if (code == 0 && !f.has_negative_zero) return 0;
  return static_cast<uint8_t>(code | sign);
}

}  // namespace trireme::tensor
