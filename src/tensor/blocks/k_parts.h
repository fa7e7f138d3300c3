// How blocks of 256 weights hold the scales and codes of their parts: read by decoders, written by encoders.
#pragma once

#include <algorithm>

#include "tensor/blocks/codecs.h"

namespace trireme::tensor::blocks {

/// Where each field of a block lies, in bytes.
struct Q2KAt {
  static constexpr int64_t scales = 0, codes = 16, d = 80, dmin = 82, bytes = 84;
};
struct Q3KAt {
  static constexpr int64_t high = 0, codes = 32, scales = 96, d = 108, bytes = 110;
};
struct Q4KAt {
  static constexpr int64_t d = 0, dmin = 2, scales = 4, codes = 16, bytes = 144;
};
struct Q5KAt {
  static constexpr int64_t d = 0, dmin = 2, scales = 4, high = 16, codes = 48, bytes = 176;
};
struct Q6KAt {
  static constexpr int64_t codes = 0, high = 128, scales = 192, d = 208, bytes = 210;
};

/// Codes of 2 bits: 128 weights in 32 bytes, weight 32 g + i at bits 2 g of byte i.
inline int two_bits(const uint8_t* codes, int64_t i) {
  return codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}
inline void put_two_bits(uint8_t* codes, int64_t i, int q) {
  codes[i / 128 * 32 + i % 32] |= static_cast<uint8_t>((q & 3) << (i % 128 / 32 * 2));
}
/// One bit: weight 32 g + i at bit g of byte i.
inline int one_bit(const uint8_t* bits, int64_t i) { return bits[i % 32] >> (i / 32) & 1; }
inline void put_one_bit(uint8_t* bits, int64_t i, int bit) {
  bits[i % 32] |= static_cast<uint8_t>(bit << (i / 32));
}
/// Codes of 4 bits: each run of 2 kHalf weights in kHalf bytes, the first half of them in the low bits.
template <int64_t kHalf>
int four_bits(const uint8_t* codes, int64_t i) {
  const uint8_t pair = codes[i / (2 * kHalf) * kHalf + i % kHalf];
  return i % (2 * kHalf) < kHalf ? pair & 15 : pair >> 4;
}
template <int64_t kHalf>
void put_four_bits(uint8_t* codes, int64_t i, int q) {
  codes[i / (2 * kHalf) * kHalf + i % kHalf] |=
      static_cast<uint8_t>((q & 15) << (i % (2 * kHalf) < kHalf ? 0 : 4));
}

/// Eight scales and eight minima of 6 bits in 12 bytes (q4_k, q5_k): those of the first four parts in the low
/// bits of bytes 0 to 3 and 4 to 7, of the others in halves of bytes 8 to 11 and in the two bits left over.
struct ScaleMin {
  int scale = 0, min = 0;
};
inline ScaleMin scale_min(const uint8_t* s, int64_t part) {
  if (part < 4) return {s[part] & 63, s[part + 4] & 63};
  return {(s[part + 4] & 15) | (s[part - 4] >> 6) << 4, s[part + 4] >> 4 | (s[part] >> 6) << 4};
}
inline void put_scale_min(uint8_t* s, int64_t part, ScaleMin v) {
  const auto add = [&](int64_t at, int bits) { s[at] = static_cast<uint8_t>(s[at] | bits); };
  if (part < 4) {
    add(part, v.scale);
    add(part + 4, v.min);
    return;
  }
  add(part + 4, (v.scale & 15) | (v.min & 15) << 4);
  add(part - 4, v.scale >> 4 << 6);
  add(part, v.min >> 4 << 6);
}

/// Sixteen scales of 6 bits, 32 too large, in 12 bytes (q3_k): low halves of the first eight and of the last
/// eight in bytes 0 to 7, upper bits of four scales in each of the bytes 8 to 11.
inline int signed_scale(const uint8_t* s, int64_t part) {
  const int low = part < 8 ? s[part] & 15 : s[part - 8] >> 4;
  return (low | (s[8 + part % 4] >> (part / 4 * 2) & 3) << 4) - 32;
}
inline void put_signed_scale(uint8_t* s, int64_t part, int scale) {
  const int v = scale + 32;
  s[part % 8] |= static_cast<uint8_t>((v & 15) << (part < 8 ? 0 : 4));
  s[8 + part % 4] |= static_cast<uint8_t>((v >> 4) << (part / 4 * 2));
}

/// The codes as they are stored, without offset.
inline int q2_k_code(const uint8_t* b, int64_t i) { return two_bits(b + Q2KAt::codes, i); }
inline int q3_k_code(const uint8_t* b, int64_t i) {
  return two_bits(b + Q3KAt::codes, i) | one_bit(b + Q3KAt::high, i) << 2;
}
inline int q4_k_code(const uint8_t* b, int64_t i) { return four_bits<32>(b + Q4KAt::codes, i); }
inline int q5_k_code(const uint8_t* b, int64_t i) {
  return four_bits<32>(b + Q5KAt::codes, i) | one_bit(b + Q5KAt::high, i) << 4;
}
inline int q6_k_code(const uint8_t* b, int64_t i) {
  return four_bits<64>(b + Q6KAt::codes, i) | two_bits(b + Q6KAt::high, i) << 4;
}

}  // namespace trireme::tensor::blocks
