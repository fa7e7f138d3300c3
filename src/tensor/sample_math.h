// The arithmetic of token draws, shared by hosts and devices: weights are whole numbers, so that their sums
// are exact in any order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/element_math.h"

namespace trireme::tensor {

/// Numbers whose order is that of floats; NaN comes last.
TRIREME_HD inline uint32_t ordered_bits(float v) {
  uint32_t bits = 0;
  if (v != 0) memcpy(&bits, &v, sizeof bits);  // both zeros are equal
  if (v != v) return 0;
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// What token_weight() takes for a temperature above 0: log2(e) / temperature.
TRIREME_HD inline float weight_scale(float temperature) { return 1.44269504f / temperature; }

/// exp((x - most) / temperature) in units of 2^-31, in whole numbers but for one difference and one product:
/// the same on every processor, to 2^-26 of each. What is 21 nats below the most likely token is 0. Up
/// to 2^32 of them fit a sum.
TRIREME_HD inline uint64_t token_weight(float x, float most, float scale) {
  const float below = (most - x) * scale;  // log2 of 1 / weight
  if (!(below < 32.0f)) return 0;
  const auto fixed = static_cast<uint32_t>(below * 134217728.0f);
  const uint64_t z = fixed << 5;  // the fraction in units of 2^-32
  // 2^-z = 1 - z (c1 - z (c2 - ...)) with c_i = ln(2)^i / i!.
  constexpr uint64_t kFactors[] = {437,      5676,      65510,      661577,    5726720,
                                   41309550, 238388332, 1031764991, 2977044472};
  uint64_t sum = kFactors[0];
  for (int i = 1; i < 9; ++i) sum = kFactors[i] - (z * sum >> 32);
  return ((uint64_t{1} << 31) - (z * sum >> 33)) >> (fixed >> 27);
}

/// The score of a token that occurred `seen` times two, plus 1 if it was in the prompt: repetition divides or
/// multiplies, what was generated costs `presence` and each time `frequency`.
TRIREME_HD inline float penalized(float x, int32_t seen, float repetition, float presence, float frequency) {
  if (seen == 0) return x;
  // A product by fma with -0 cannot be contracted with the difference.
  const float score = x > 0 ? x / repetition : fmaf(x, repetition, -0.0f);
  return seen > 1 ? score - fmaf(frequency, static_cast<float>(seen >> 1), presence) : score;
}

/// The least weight that min_p keeps.
TRIREME_HD inline uint64_t least_weight(float min_p) {
  return min_p > 0 ? static_cast<uint64_t>((min_p < 1 ? min_p : 1.0f) * 2147483648.0f) : 0;
}

/// The part of a sum that top_p asks for, at least 1.
TRIREME_HD inline uint64_t nucleus(float top_p, uint64_t total) {
  const auto part = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
  return part < 1 ? 1 : part < total ? part : total;
}

/// floor(u total) with u the 64 bits of a draw over 2^64.
TRIREME_HD inline uint64_t drawn_part(uint32_t high, uint32_t low, uint64_t total) {
  const uint64_t u = uint64_t{high} << 32 | low;
  const uint64_t u1 = u >> 32, u0 = u & 0xffffffffu, t1 = total >> 32, t0 = total & 0xffffffffu;
  const uint64_t middle = u1 * t0 + (u0 * t0 >> 32), other = u0 * t1 + (middle & 0xffffffffu);
  return u1 * t1 + (middle >> 32) + (other >> 32);
}

/// The stream of token draws beside those of ops/random.
inline constexpr uint64_t kTokenStream = 4;

}  // namespace trireme::tensor
