// Keys and values in 8 bits: rows of floats become codes and a scale.
#include "backend/cpu/attention/page_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tensor/blocks/coded_rows.h"

namespace trireme::cpu {
namespace {

/// x of at most 2^22 to the nearest whole number, in two's complement: the sum has it in its last bits.
uint8_t whole_code(float x) {
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(x + kWhole));
}

/// The code of f8e4m3fn nearest to x, which is at most 448 in magnitude.
uint8_t e4m3_code(float x) {
  constexpr uint32_t kDropped = 20, kHalf = (1u << (kDropped - 1)) - 1;  // bits of f32 that e4m3 has not
  constexpr uint32_t kBias = 127 - 7;
  const auto bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  const uint32_t rounded = (magnitude + kHalf + (magnitude >> kDropped & 1)) >> kDropped;
  const uint8_t small = whole_code(std::fabs(x) * 512.0f);  // subnormal codes count in 2^-9
  const bool is_small = std::fabs(x) < 0x1p-6f;
  return static_cast<uint8_t>(sign | (is_small ? small : rounded - (kBias << 3)));
}

}  // namespace

void encode_row(const float* x, tensor::DType type, void* to, size_t n) {
  base::check(tensor::holds_codes(type), "keys and values in codes of ", tensor::name_of(type));
  const bool is_whole = type == tensor::DType::i8;
  float most = 0;
  bool is_finite = true;
  for (size_t i = 0; i < n; ++i) {
    is_finite = is_finite && std::isfinite(x[i]);
    most = std::max(most, std::fabs(x[i]));
  }
  float scale = most / tensor::largest_code(type);
  if (scale < std::numeric_limits<float>::min()) scale = 0;
  if (!is_finite) scale = std::numeric_limits<float>::quiet_NaN();
  auto* codes = static_cast<uint8_t*>(to);
  const float by = scale > 0 ? 1.0f / scale : 0.0f;
  if (by == 0) {
    std::memset(codes, 0, n);
  } else if (is_whole) {
    for (size_t i = 0; i < n; ++i) codes[i] = whole_code(x[i] * by);
  } else {
    for (size_t i = 0; i < n; ++i) codes[i] = e4m3_code(x[i] * by);
  }
  std::memcpy(codes + n, &scale, sizeof scale);
}

}  // namespace trireme::cpu
