// The codecs behind the table of block formats, and what their files share.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/half.h"

namespace trireme::tensor::blocks {

/// decode and encode of one format: see BlockFormat.
struct Codec {
  void (*decode)(const uint8_t*, int64_t, float*);
  void (*encode)(const float*, int64_t, uint8_t*, const float*);
};

// Blocks of 32 weights.
extern const Codec kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kIq4Nl, kMxfp4;
// Those of quantized checkpoints: 32 or 128 weights with one scale and one zero point.
extern const Codec kInt4G32, kInt4G128, kInt8G32, kInt8G128;
// Floats of 16 bits, 32 of them without a scale.
extern const Codec kBf16, kF16;
// Blocks of 256 weights in parts of 16 or 32 with scales of their own.
extern const Codec kQ2K, kQ3K, kQ4K, kQ5K, kQ6K;

inline constexpr int64_t kSmall = 32, kLarge = 256;

inline uint16_t bits_at(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
inline float half_at(const uint8_t* p) { return f16_bits_to_f32(bits_at(p)); }
inline void put_half(uint8_t* p, float value) {
  const uint16_t bits = f32_to_f16_bits(value);
  p[0] = static_cast<uint8_t>(bits);
  p[1] = static_cast<uint8_t>(bits >> 8);
}

/// A number cut to a whole one in [low, high]; 0 or `low` for one that is not finite.
inline int whole(float value, int low, int high) {
  const auto least = static_cast<float>(low), most = static_cast<float>(high);
  if (!std::isfinite(value)) return low > 0 ? low : 0;
  return static_cast<int>(value < least ? least : value > most ? most : value);
}

/// 1 / d, or 0 for 0.
inline float inverse(float d) { return d == 0 ? 0.0f : 1.0f / d; }

/// Decodes or encodes block after block.
template <int64_t kWeights, int64_t kBytes, void (*kOne)(const uint8_t*, float*)>
void decode_all(const uint8_t* blocks, int64_t count, float* out) {
  for (int64_t b = 0; b < count; ++b) kOne(blocks + b * kBytes, out + b * kWeights);
}
template <int64_t kWeights, int64_t kBytes, void (*kOne)(const float*, uint8_t*, const float*)>
void encode_all(const float* values, int64_t count, uint8_t* blocks, const float* importance) {
  for (int64_t b = 0; b < count; ++b) kOne(values + b * kWeights, blocks + b * kBytes, importance);
}

}  // namespace trireme::tensor::blocks
