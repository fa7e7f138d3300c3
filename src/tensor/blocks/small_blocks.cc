// Block formats of 32 weights: a scale, in some formats a minimum, and codes of 4, 5 or 8 bits.
#include <algorithm>

#include "tensor/blocks/block_format.h"
#include "tensor/blocks/codecs.h"

namespace trireme::tensor::blocks {
namespace {

/// The weight of largest magnitude; the first one if there are several.
float extreme(const float* x) {
  float found = x[0];
  for (int64_t i = 1; i < kSmall; ++i) {
    if (std::fabs(x[i]) > std::fabs(found)) found = x[i];
  }
  return found;
}

/// 4-bit codes: byte i holds those of weights i (low half) and i + 16 (high half).
int low_code(const uint8_t* codes, int64_t i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
void put_low_codes(const int* q, uint8_t* codes) {
  for (int64_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

/// Fifth bits: bit i of a 32-bit number belongs to weight i.
int high_bit(const uint8_t* bits, int64_t i) { return bits[i / 8] >> (i % 8) & 1; }
void put_high_bits(const int* q, uint8_t* bits) {
  std::fill_n(bits, 4, uint8_t{0});
  for (int64_t i = 0; i < kSmall; ++i) bits[i / 8] |= static_cast<uint8_t>((q[i] >> 4 & 1) << (i % 8));
}

/// Codes around the middle: weight = d (q - kTop - 1), so that the extreme weight has code 0. The sum is
/// rounded to f32 before truncation, as in the package gguf.
template <int kTop>
void centred_codes(const float* x, float d, int* q) {
  const auto id = static_cast<double>(inverse(d));
  for (int64_t i = 0; i < kSmall; ++i) {
    const double at = static_cast<double>(x[i]) * id + (kTop + 1 + 0.5);
    q[i] = whole(static_cast<float>(at), 0, 2 * kTop + 1);
  }
}

/// Codes from the minimum up: weight = d q + least.
template <int kTop>
void codes_from_least(const float* x, float* scale, float* least, int* q) {
  const auto [low, high] = std::minmax_element(x, x + kSmall);
  *least = *low;
  *scale = (*high - *low) / kTop;
  const float id = inverse(*scale);
  for (int64_t i = 0; i < kSmall; ++i) q[i] = whole((x[i] - *least) * id + 0.5f, 0, kTop);
}

void decode_q8_0(const uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}
void encode_q8_0(const float* x, uint8_t* b, const float*) {
  const float d = std::fabs(extreme(x)) / 127;
  const float id = inverse(d);
  put_half(b, d);
  for (int64_t i = 0; i < kSmall; ++i) {  // ties are rounded away from zero
    const float at = x[i] * id, size = std::fabs(at), floor = std::floor(size);
    const int code = whole(floor + std::floor(2 * (size - floor)), 0, 127);
    b[2 + i] = static_cast<uint8_t>(at < 0 ? -code : code);
  }
}

void decode_q4_0(const uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = d * static_cast<float>(low_code(b + 2, i) - 8);
}
void encode_q4_0(const float* x, uint8_t* b, const float*) {
  int q[kSmall];
  const float d = extreme(x) / -8;
  put_half(b, d);
  centred_codes<7>(x, d, q);
  put_low_codes(q, b + 2);
}

void decode_q4_1(const uint8_t* b, float* out) {
  const float d = half_at(b), least = half_at(b + 2);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = d * static_cast<float>(low_code(b + 4, i)) + least;
}
void encode_q4_1(const float* x, uint8_t* b, const float*) {
  int q[kSmall];
  float d = 0, least = 0;
  codes_from_least<15>(x, &d, &least, q);
  put_half(b, d);
  put_half(b + 2, least);
  put_low_codes(q, b + 4);
}

void decode_q5_0(const uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int64_t i = 0; i < kSmall; ++i)
    out[i] = d * static_cast<float>((low_code(b + 6, i) | high_bit(b + 2, i) << 4) - 16);
}
void encode_q5_0(const float* x, uint8_t* b, const float*) {
  int q[kSmall];
  const float d = extreme(x) / -16;
  put_half(b, d);
  centred_codes<15>(x, d, q);
  put_high_bits(q, b + 2);
  put_low_codes(q, b + 6);
}

void decode_q5_1(const uint8_t* b, float* out) {
  const float d = half_at(b), least = half_at(b + 2);
  for (int64_t i = 0; i < kSmall; ++i)
    out[i] = d * static_cast<float>(low_code(b + 8, i) | high_bit(b + 4, i) << 4) + least;
}
void encode_q5_1(const float* x, uint8_t* b, const float*) {
  int q[kSmall];
  float d = 0, least = 0;
  codes_from_least<31>(x, &d, &least, q);
  put_half(b, d);
  put_half(b + 2, least);
  put_high_bits(q, b + 4);
  put_low_codes(q, b + 8);
}

void decode_iq4_nl(const uint8_t* b, float* out) {
  const float d = half_at(b);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = d * static_cast<float>(kIq4Values[low_code(b + 2, i)]);
}

/// The nearest entry of the ascending table.
int nearest_iq4(float at) {
  if (!std::isfinite(at)) return 0;
  const int8_t* next = std::lower_bound(kIq4Values, kIq4Values + 16, at,
                                        [](int8_t entry, float v) { return static_cast<float>(entry) < v; });
  if (next == kIq4Values) return 0;
  if (next == kIq4Values + 16) return 15;
  const bool is_before = at - static_cast<float>(next[-1]) < static_cast<float>(next[0]) - at;
  return static_cast<int>(next - kIq4Values) - is_before;
}

/// The sums of one trial: for codes q the best scale is xq / qq, which reduces the error by xq^2 / qq.
struct Trial {
  double xq = 0, qq = 0;
  double gain() const { return qq > 0 ? xq * xq / qq : 0; }
};
Trial try_iq4(const float* x, float d, const float* importance, int* q) {
  Trial t;
  const float id = inverse(d);
  for (int64_t i = 0; i < kSmall; ++i) {
    q[i] = nearest_iq4(x[i] * id);
    const double weight =
        importance == nullptr ? static_cast<double>(x[i]) * x[i] : static_cast<double>(importance[i]);
    const double entry = kIq4Values[q[i]];
    t.xq += weight * entry * x[i];
    t.qq += weight * entry * entry;
  }
  return t;
}
void encode_iq4_nl(const float* x, uint8_t* b, const float* importance) {
  int best[kSmall] = {}, q[kSmall];
  const float most = extreme(x);
  float d = 0;
  double gain = 0;
  for (int step = -7; step <= 7 && most != 0 && std::isfinite(most); ++step) {
    const Trial t = try_iq4(x, most / static_cast<float>(kIq4Values[0] + 2 * step), importance, q);
    if (t.gain() <= gain) continue;
    gain = t.gain();
    d = static_cast<float>(t.xq / t.qq);
    std::copy_n(q, kSmall, best);
  }
  put_half(b, d);
  put_low_codes(best, b + 2);
}

/// Half of 2^(e - 127), since the table of mxfp4 holds doubled numbers.
float mxfp4_scale(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? uint32_t{0x00200000} << e : static_cast<uint32_t>(e - 1) << 23);
}
void decode_mxfp4(const uint8_t* b, float* out) {
  const float d = mxfp4_scale(b[0]);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = d * static_cast<float>(kMxfp4Values[low_code(b + 1, i)]);
}
void encode_mxfp4(const float* x, uint8_t* b, const float*) {
  const float most = std::fabs(extreme(x));
  // The logarithm is rounded to f32 before truncation, as in the package gguf.
  const auto log = static_cast<float>(std::log2(static_cast<double>(most)));
  b[0] = static_cast<uint8_t>(most > 0 ? whole(std::floor(log) + 125, 0, 255) : 0);
  const float d = mxfp4_scale(b[0]);
  int q[kSmall];
  for (int64_t i = 0; i < kSmall; ++i) {
    q[i] = 0;
    float least = std::fabs(x[i]);
    for (int code = 1; code < 16; ++code) {
      const float off = std::fabs(d * static_cast<float>(kMxfp4Values[code]) - x[i]);
      if (off < least) least = off, q[i] = code;
    }
  }
  put_low_codes(q, b + 1);
}

}  // namespace

const Codec kQ8_0{decode_all<kSmall, 34, decode_q8_0>, encode_all<kSmall, 34, encode_q8_0>};
const Codec kQ4_0{decode_all<kSmall, 18, decode_q4_0>, encode_all<kSmall, 18, encode_q4_0>};
const Codec kQ4_1{decode_all<kSmall, 20, decode_q4_1>, encode_all<kSmall, 20, encode_q4_1>};
const Codec kQ5_0{decode_all<kSmall, 22, decode_q5_0>, encode_all<kSmall, 22, encode_q5_0>};
const Codec kQ5_1{decode_all<kSmall, 24, decode_q5_1>, encode_all<kSmall, 24, encode_q5_1>};
const Codec kIq4Nl{decode_all<kSmall, 18, decode_iq4_nl>, encode_all<kSmall, 18, encode_iq4_nl>};
const Codec kMxfp4{decode_all<kSmall, 17, decode_mxfp4>, encode_all<kSmall, 17, encode_mxfp4>};

}  // namespace trireme::tensor::blocks
