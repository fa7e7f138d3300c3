// Formats for weights of quantized checkpoints: groups of a row, each with an f32 scale and a zero point.
#include <algorithm>

#include "tensor/blocks/codecs.h"

namespace trireme::tensor::blocks {
namespace {

constexpr int64_t kCodes = 5;  // offset of the codes after scale (f32) and zero point (i8)

/// Code `i` of a block.
template <int kBits>
int code_at(const uint8_t* b, int64_t i) {
  if (kBits == 8) return static_cast<int8_t>(b[kCodes + i]);
  const uint8_t pair = b[kCodes + i / 32 * 16 + i % 16];
  return i % 32 < 16 ? pair & 15 : pair >> 4;
}

template <int kBits, int64_t kWeights>
void decode_one(const uint8_t* b, float* out) {
  float scale;
  std::memcpy(&scale, b, sizeof scale);
  const int zero = static_cast<int8_t>(b[4]);
  for (int64_t i = 0; i < kWeights; ++i) out[i] = scale * static_cast<float>(code_at<kBits>(b, i) - zero);
}

/// Codes span the range from the smallest to the largest weight, extended to include zero.
template <int kBits, int64_t kWeights>
void encode_one(const float* x, uint8_t* b, const float*) {
  constexpr int kLow = kBits == 8 ? -128 : 0, kHigh = kBits == 8 ? 127 : 15;
  const auto [least, most] = std::minmax_element(x, x + kWeights);
  const float low = std::min(*least, 0.0f), high = std::max(*most, 0.0f);
  const float scale = (high - low) / (kHigh - kLow), id = inverse(scale);
  const int zero = whole(std::nearbyint(static_cast<float>(kLow) - low * id), kLow, kHigh);
  std::memcpy(b, &scale, sizeof scale);
  b[4] = static_cast<uint8_t>(zero);
  std::fill_n(b + kCodes, kWeights * kBits / 8, uint8_t{0});
  for (int64_t i = 0; i < kWeights; ++i) {
    const int q = whole(std::nearbyint(x[i] * id) + static_cast<float>(zero), kLow, kHigh);
    if (kBits == 8) {
      b[kCodes + i] = static_cast<uint8_t>(q);
    } else {
      b[kCodes + i / 32 * 16 + i % 16] |= static_cast<uint8_t>(i % 32 < 16 ? q : q << 4);
    }
  }
}

template <int kBits, int64_t kWeights>
constexpr Codec codec() {
  constexpr int64_t kBytes = kCodes + kWeights * kBits / 8;
  return {decode_all<kWeights, kBytes, decode_one<kBits, kWeights>>,
          encode_all<kWeights, kBytes, encode_one<kBits, kWeights>>};
}

}  // namespace

const Codec kInt4G32 = codec<4, 32>(), kInt4G128 = codec<4, 128>();
const Codec kInt8G32 = codec<8, 32>(), kInt8G128 = codec<8, 128>();

}  // namespace trireme::tensor::blocks
