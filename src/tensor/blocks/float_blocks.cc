// Floats of 16 bits as blocks without scales, so that products read them as they read codes.
#include "tensor/blocks/codecs.h"

namespace trireme::tensor::blocks {
namespace {

using Widen = float (*)(uint16_t);
using Narrow = uint16_t (*)(float);

template <Widen kWiden>
void decode_one(const uint8_t* b, float* out) {
  for (int64_t i = 0; i < kSmall; ++i) out[i] = kWiden(bits_at(b + 2 * i));
}

template <Narrow kNarrow>
void encode_one(const float* x, uint8_t* b, const float*) {
  for (int64_t i = 0; i < kSmall; ++i) {
    const uint16_t bits = kNarrow(x[i]);
    b[2 * i] = static_cast<uint8_t>(bits);
    b[2 * i + 1] = static_cast<uint8_t>(bits >> 8);
  }
}

template <Widen kWiden, Narrow kNarrow>
constexpr Codec codec() {
  return {decode_all<kSmall, 2 * kSmall, decode_one<kWiden>>,
          encode_all<kSmall, 2 * kSmall, encode_one<kNarrow>>};
}

}  // namespace

const Codec kBf16 = codec<bf16_bits_to_f32, f32_to_bf16_bits>();
const Codec kF16 = codec<f16_bits_to_f32, f32_to_f16_bits>();

}  // namespace trireme::tensor::blocks
