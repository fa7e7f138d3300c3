// The two 8-bit floats of products, and the power of two that brings a row into their range: for host and
// device.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define TRIREME_FLOAT8_HD __host__ __device__
#else
#define TRIREME_FLOAT8_HD
#endif

namespace trireme::tensor {

/// E4M3 without infinities (largest 448, NaN 0x7f) or E5M2 (largest 57344).
struct Float8Form {
  int mantissa = 3;  ///< bits
  int bias = 7;      ///< of the exponent
  int top = 8;       ///< exponent of the largest value, which is 1.75 2^top
  uint8_t largest = 0x7e;

  TRIREME_FLOAT8_HD static constexpr Float8Form of(bool e5m2) {
    return e5m2 ? Float8Form{2, 15, 15, 0x7b} : Float8Form{};
  }
};

/// bit_cast, which device code may not call.
TRIREME_FLOAT8_HD inline uint32_t float_bits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
TRIREME_FLOAT8_HD inline float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

inline constexpr uint32_t kFloatInfinity = 0x7f800000u;

/// Bits of |x|: ordered as the values are, infinities above all numbers and NaN above those.
TRIREME_FLOAT8_HD inline uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffffu; }

/// 2^exponent, -126 <= exponent <= 127.
TRIREME_FLOAT8_HD inline float power_of_two(int exponent) {
  return float_of(static_cast<uint32_t>(exponent + 127) << 23);
}

/// The exponent e >= -126 of the least power of two with |x| / 2^e <= the largest value of the form for all x
/// of a row whose largest magnitude has the bits `most` (not zero, finite).
TRIREME_FLOAT8_HD inline int float8_exponent(uint32_t most, const Float8Form& form) {
  const int exponent = static_cast<int>(most >> 23) - 127 - form.top + ((most & 0x7fffffu) > 0x600000u);
  return exponent < -126 ? -126 : exponent;
}

/// A row's scale: 2^e as above; 1 for a row of zeros, NaN for a row with an infinity or a NaN.
TRIREME_FLOAT8_HD inline float float8_scale(uint32_t most, const Float8Form& form) {
  if (most == 0) return 1.0f;
  if (most >= kFloatInfinity) return float_of(0x7fc00000u);
  return power_of_two(float8_exponent(most, form));
}

/// 1 / scale of such a scale, exact; NaN for NaN.
TRIREME_FLOAT8_HD inline float float8_inverse(float scale) {
  const uint32_t bits = float_bits(scale);
  return bits > kFloatInfinity ? scale : float_of((254u << 23) - bits);
}

/// The code nearest to x, ties to even; the largest where x is beyond it, NaN for NaN.
TRIREME_FLOAT8_HD inline uint8_t float8_code(float x, const Float8Form& form) {
  const uint32_t bits = float_bits(x), sign = bits >> 24 & 0x80u;
  const uint32_t u = bits & 0x7fffffffu;
  // Below the smallest normal: adding a float whose last bit is the quantum rounds to whole quanta.
  const float one = power_of_two(1 - form.bias - form.mantissa + 23);
  const uint32_t small = float_bits(float_of(u) + one) - float_bits(one);
  const int shift = 23 - form.mantissa;
  const uint32_t rounded = (u + ((1u << (shift - 1)) - 1) + (u >> shift & 1u)) >> shift;
  const uint32_t large = rounded - (static_cast<uint32_t>(127 - form.bias) << form.mantissa);
  uint32_t code = u < static_cast<uint32_t>(128 - form.bias) << 23 ? small : large;
  code = code > form.largest ? form.largest : code;
  return static_cast<uint8_t>(u > kFloatInfinity ? 0x7fu : sign | code);
}

/// The value of a code, exact.
TRIREME_FLOAT8_HD inline float float8_value(uint8_t code, const Float8Form& form) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, u = code & 0x7fu;
  // In the place of a float's bits the code is the value times a power of two. A subnormal code there would
  // be a subnormal float, which counts as zero in programs.
  const float scaled = u >> form.mantissa == 0
                           ? static_cast<float>(u) * power_of_two(1 - form.bias - form.mantissa)
                           : float_of(u << (23 - form.mantissa)) * power_of_two(127 - form.bias);
  float value = scaled;
  if (u > form.largest) value = float_of(form.mantissa == 2 && u == 0x7c ? kFloatInfinity : 0x7fc00000u);
  return float_of(float_bits(value) | sign);
}

}  // namespace trireme::tensor
