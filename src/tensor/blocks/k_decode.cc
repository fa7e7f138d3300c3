// Decodes block formats of 256 weights: the scales of parts are integer multiples of the block's scale.
#include "tensor/blocks/k_decode.h"

#include "tensor/blocks/k_parts.h"

namespace trireme::tensor::blocks {
namespace {

void decode_one_q2_k(const uint8_t* b, float* out) {
  const float d = half_at(b + Q2KAt::d), dmin = half_at(b + Q2KAt::dmin);
  for (int64_t i = 0; i < kLarge; ++i) {
    const uint8_t part = b[Q2KAt::scales + i / 16];
    const float scale = d * static_cast<float>(part & 15), least = dmin * static_cast<float>(part >> 4);
    out[i] = scale * static_cast<float>(q2_k_code(b, i)) - least;
  }
}

void decode_one_q3_k(const uint8_t* b, float* out) {
  const float d = half_at(b + Q3KAt::d);
  for (int64_t i = 0; i < kLarge; ++i) {
    const float scale = d * static_cast<float>(signed_scale(b + Q3KAt::scales, i / 16));
    out[i] = scale * static_cast<float>(q3_k_code(b, i) - 4);
  }
}

template <class At, int (*kCode)(const uint8_t*, int64_t)>
void with_least(const uint8_t* b, float* out) {
  const float d = half_at(b + At::d), dmin = half_at(b + At::dmin);
  for (int64_t part = 0; part < 8; ++part) {
    const ScaleMin own = scale_min(b + At::scales, part);
    const float scale = d * static_cast<float>(own.scale), least = dmin * static_cast<float>(own.min);
    for (int64_t i = part * 32; i < part * 32 + 32; ++i)
      out[i] = scale * static_cast<float>(kCode(b, i)) - least;
  }
}

void decode_one_q6_k(const uint8_t* b, float* out) {
  const float d = half_at(b + Q6KAt::d);
  for (int64_t i = 0; i < kLarge; ++i) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(b[Q6KAt::scales + i / 16]));
    out[i] = scale * static_cast<float>(q6_k_code(b, i) - 32);
  }
}

}  // namespace

void decode_q2_k(const uint8_t* b, int64_t n, float* out) {
  decode_all<kLarge, Q2KAt::bytes, decode_one_q2_k>(b, n, out);
}
void decode_q3_k(const uint8_t* b, int64_t n, float* out) {
  decode_all<kLarge, Q3KAt::bytes, decode_one_q3_k>(b, n, out);
}
void decode_q4_k(const uint8_t* b, int64_t n, float* out) {
  decode_all<kLarge, Q4KAt::bytes, with_least<Q4KAt, q4_k_code>>(b, n, out);
}
void decode_q5_k(const uint8_t* b, int64_t n, float* out) {
  decode_all<kLarge, Q5KAt::bytes, with_least<Q5KAt, q5_k_code>>(b, n, out);
}
void decode_q6_k(const uint8_t* b, int64_t n, float* out) {
  decode_all<kLarge, Q6KAt::bytes, decode_one_q6_k>(b, n, out);
}

}  // namespace trireme::tensor::blocks
