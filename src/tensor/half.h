// The two 16-bit float types as storage with exact conversion to and from float (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>

namespace trireme::tensor {

/// float -> IEEE binary16 bits; overflow becomes infinity, NaN stays NaN.
uint16_t f32_to_f16_bits(float x);
/// IEEE binary16 bits -> float, exact.
float f16_bits_to_f32(uint16_t bits);

/// float -> bfloat16 bits; NaN stays NaN.
inline uint16_t f32_to_bf16_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x0040u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float bf16_bits_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// IEEE binary16 storage; arithmetic happens in float.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  template <class T>
  explicit Half(T x) : bits(f32_to_f16_bits(static_cast<float>(x))) {}
  operator float() const { return f16_bits_to_f32(bits); }
};

/// bfloat16 storage; arithmetic happens in float.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  template <class T>
  explicit BFloat16(T x) : bits(f32_to_bf16_bits(static_cast<float>(x))) {}
  operator float() const { return bf16_bits_to_f32(bits); }
};

}  // namespace trireme::tensor
