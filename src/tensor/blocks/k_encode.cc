// Encodes floats in block formats of 256 weights: finds the scale (and minimum) of each part by weighted
// least squares over a few candidates, rounds these to integer multiples of the block's scale, and then
// computes the codes again with the rounded scales.
#include <array>

#include "tensor/blocks/k_decode.h"
#include "tensor/blocks/k_parts.h"

namespace trireme::tensor::blocks {
namespace {

/// One part of a block: its weights, and the factors with which their errors count.
struct Part {
  const float* x;
  const float* counts;
  int64_t size;
};

/// Without importance, errors count by the root of the squared weight plus the part's mean square, so that
/// large weights matter more but small ones do not vanish; a given importance multiplies this.
void set_counts(const float* x, const float* importance, int64_t size, float* counts) {
  double squares = 0;
  for (int64_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
  const auto mean = static_cast<float>(squares / static_cast<double>(size));
  for (int64_t i = 0; i < size; ++i) {
    const float own = std::sqrt(mean + x[i] * x[i]);
    counts[i] = importance == nullptr ? own : own * importance[i];
  }
}

int rounded_code(float value, int low, int high) { return whole(std::nearbyint(value), low, high); }

/// The scale for x = scale * q, q in [-reach, reach - 1], with the smallest error.
float signed_fit(const Part& p, int reach) {
  float most = 0;
  for (int64_t i = 0; i < p.size; ++i) {
    if (std::fabs(p.x[i]) > std::fabs(most)) most = p.x[i];
  }
  if (most == 0 || !std::isfinite(most)) return 0;
  double best = 0;
  float found = 0;
  for (int step = -9; step <= 9; ++step) {
    // Candidates put the extreme weight at -reach, slightly inside or slightly beyond.
    const float id = -(static_cast<float>(reach) + 0.1f * static_cast<float>(step)) / most;
    double xq = 0, qq = 0;
    for (int64_t i = 0; i < p.size; ++i) {
      const double q = rounded_code(p.x[i] * id, -reach, reach - 1), count = static_cast<double>(p.counts[i]);
      xq += count * q * static_cast<double>(p.x[i]);
      qq += count * q * q;
    }
    if (qq > 0 && xq * xq > best * qq) {
      best = xq * xq / qq;
      found = static_cast<float>(xq / qq);
    }
  }
  return found;
}

/// x = scale q - least with q in [0, top], least >= 0.
struct Affine {
  float scale = 0, least = 0;
};

double affine_error(const Part& p, const Affine& a, int top) {
  const float id = inverse(a.scale);
  double sum = 0;
  for (int64_t i = 0; i < p.size; ++i) {
    const auto q = static_cast<float>(rounded_code((p.x[i] + a.least) * id, 0, top));
    const auto off = static_cast<double>(a.scale * q - a.least - p.x[i]);
    sum += static_cast<double>(p.counts[i]) * off * off;
  }
  return sum;
}

/// Scale and minimum by least squares, for the codes that `from` yields.
Affine refit(const Part& p, const Affine& from, int top) {
  const float id = inverse(from.scale);
  double w = 0, x = 0, q1 = 0, q2 = 0, xq = 0;
  for (int64_t i = 0; i < p.size; ++i) {
    const double q = rounded_code((p.x[i] + from.least) * id, 0, top),
                 count = static_cast<double>(p.counts[i]);
    const auto value = static_cast<double>(p.x[i]);
    w += count, x += count * value, q1 += count * q, q2 += count * q * q, xq += count * q * value;
  }
  const double det = w * q2 - q1 * q1;
  if (det <= 0) return from;
  const double least = (q1 * xq - q2 * x) / det;
  if (least >= 0) return {static_cast<float>((w * xq - q1 * x) / det), static_cast<float>(least)};
  return {q2 > 0 ? static_cast<float>(xq / q2) : 0.0f, 0.0f};
}

Affine affine_fit(const Part& p, int top) {
  const auto [low, high] = std::minmax_element(p.x, p.x + p.size);
  const float from = std::min(*low, 0.0f), range = *high - from;
  if (!(range > 0) || !std::isfinite(range)) return {0, std::isfinite(from) ? -from : 0.0f};
  Affine best{range / static_cast<float>(top), -from};
  double error = affine_error(p, best, top);
  for (int step = -6; step <= 10; ++step) {
    const Affine start{range / (static_cast<float>(top) + 0.1f * static_cast<float>(step)), -from};
    const Affine fitted = refit(p, start, top);
    const double own = affine_error(p, fitted, top);
    if (own < error) error = own, best = fitted;
  }
  return best;
}

/// Quantizes the scales or minima of a block so that the largest one becomes `steps`.
struct Steps {
  float d = 0, id = 0;
  Steps(float most, int steps) {
    d = f16_bits_to_f32(f32_to_f16_bits(most / static_cast<float>(steps)));
    id = std::isfinite(d) ? inverse(d) : 0.0f;
  }
  int of(float value, int low, int high) const { return rounded_code(value * id, low, high); }
};

/// Formats with a scale and a minimum for each part of kSize weights.
template <int64_t kSize>
struct AffineParts {
  static constexpr int64_t kCount = kLarge / kSize;
  std::array<Affine, kCount> fits;
  AffineParts(const float* x, const float* importance, int top) {
    float counts[kSize];
    for (int64_t p = 0; p < kCount; ++p) {
      const float* own = importance == nullptr ? nullptr : importance + p * kSize;
      set_counts(x + p * kSize, own, kSize, counts);
      fits[static_cast<size_t>(p)] = affine_fit({x + p * kSize, counts, kSize}, top);
    }
  }
  Steps scales(int steps) const {
    float most = 0;
    for (const Affine& f : fits) most = std::max(most, f.scale);
    return {most, steps};
  }
  Steps leasts(int steps) const {
    float most = 0;
    for (const Affine& f : fits) most = std::max(most, f.least);
    return {most, steps};
  }
};

/// The code of a weight whose part has this scale and minimum after quantization.
int affine_code(float x, float scale, float least, int top) {
  return rounded_code((x + least) * inverse(scale), 0, top);
}

void encode_one_q2_k(const float* x, uint8_t* b, const float* importance) {
  std::fill_n(b, Q2KAt::bytes, uint8_t{0});
  const AffineParts<16> parts(x, importance, 3);
  const Steps d = parts.scales(15), dmin = parts.leasts(15);
  put_half(b + Q2KAt::d, d.d);
  put_half(b + Q2KAt::dmin, dmin.d);
  for (int64_t p = 0; p < 16; ++p) {
    const Affine& own = parts.fits[static_cast<size_t>(p)];
    const int scale = d.of(own.scale, 0, 15), least = dmin.of(own.least, 0, 15);
    b[Q2KAt::scales + p] = static_cast<uint8_t>(scale | least << 4);
    for (int64_t i = p * 16; i < p * 16 + 16; ++i)
      put_two_bits(b + Q2KAt::codes, i,
                   affine_code(x[i], d.d * static_cast<float>(scale), dmin.d * static_cast<float>(least), 3));
  }
}

/// Encodes q4_k and q5_k; put(i, code) stores a code.
template <class At, int kTop, class Put>
void affine_block(const float* x, uint8_t* b, const float* importance, Put put) {
  std::fill_n(b, At::bytes, uint8_t{0});
  const AffineParts<32> parts(x, importance, kTop);
  const Steps d = parts.scales(63), dmin = parts.leasts(63);
  put_half(b + At::d, d.d);
  put_half(b + At::dmin, dmin.d);
  for (int64_t p = 0; p < 8; ++p) {
    const Affine& own = parts.fits[static_cast<size_t>(p)];
    const ScaleMin steps{d.of(own.scale, 0, 63), dmin.of(own.least, 0, 63)};
    put_scale_min(b + At::scales, p, steps);
    const float scale = d.d * static_cast<float>(steps.scale), least = dmin.d * static_cast<float>(steps.min);
    for (int64_t i = p * 32; i < p * 32 + 32; ++i) put(i, affine_code(x[i], scale, least, kTop));
  }
}
void encode_one_q4_k(const float* x, uint8_t* b, const float* importance) {
  affine_block<Q4KAt, 15>(x, b, importance,
                          [b](int64_t i, int q) { put_four_bits<32>(b + Q4KAt::codes, i, q); });
}
void encode_one_q5_k(const float* x, uint8_t* b, const float* importance) {
  affine_block<Q5KAt, 31>(x, b, importance, [b](int64_t i, int q) {
    put_four_bits<32>(b + Q5KAt::codes, i, q);
    put_one_bit(b + Q5KAt::high, i, q >> 4);
  });
}

/// Encodes q3_k and q6_k: sixteen signed scales in [-kSteps, kSteps - 1] and codes in [-kReach, kReach - 1];
/// put_scale(part, steps) and put(i, code + kReach) store them.
template <int kSteps, int kReach, class PutScale, class Put>
void signed_block(const float* x, uint8_t* d_at, const float* importance, PutScale put_scale, Put put) {
  std::array<float, 16> scales;
  float counts[16], most = 0;
  for (int64_t p = 0; p < 16; ++p) {
    set_counts(x + p * 16, importance == nullptr ? nullptr : importance + p * 16, 16, counts);
    float& own = scales[static_cast<size_t>(p)];
    own = signed_fit({x + p * 16, counts, 16}, kReach);
    if (std::fabs(own) > std::fabs(most)) most = own;
  }
  const Steps d(most, -kSteps);
  put_half(d_at, d.d);
  for (int64_t p = 0; p < 16; ++p) {
    const int steps = d.of(scales[static_cast<size_t>(p)], -kSteps, kSteps - 1);
    put_scale(p, steps);
    const float id = inverse(d.d * static_cast<float>(steps));
    for (int64_t i = p * 16; i < p * 16 + 16; ++i)
      put(i, rounded_code(x[i] * id, -kReach, kReach - 1) + kReach);
  }
}
void encode_one_q3_k(const float* x, uint8_t* b, const float* importance) {
  std::fill_n(b, Q3KAt::bytes, uint8_t{0});
  signed_block<32, 4>(
      x, b + Q3KAt::d, importance,
      [b](int64_t p, int steps) { put_signed_scale(b + Q3KAt::scales, p, steps); },
      [b](int64_t i, int q) {
        put_two_bits(b + Q3KAt::codes, i, q);
        put_one_bit(b + Q3KAt::high, i, q >> 2);
      });
}
void encode_one_q6_k(const float* x, uint8_t* b, const float* importance) {
  std::fill_n(b, Q6KAt::bytes, uint8_t{0});
  signed_block<128, 32>(
      x, b + Q6KAt::d, importance,
      [b](int64_t p, int steps) { b[Q6KAt::scales + p] = static_cast<uint8_t>(static_cast<int8_t>(steps)); },
      [b](int64_t i, int q) {
        put_four_bits<64>(b + Q6KAt::codes, i, q);
        put_two_bits(b + Q6KAt::high, i, q >> 4);
      });
}

}  // namespace

const Codec kQ2K{decode_q2_k, encode_all<kLarge, Q2KAt::bytes, encode_one_q2_k>};
const Codec kQ3K{decode_q3_k, encode_all<kLarge, Q3KAt::bytes, encode_one_q3_k>};
const Codec kQ4K{decode_q4_k, encode_all<kLarge, Q4KAt::bytes, encode_one_q4_k>};
const Codec kQ5K{decode_q5_k, encode_all<kLarge, Q5KAt::bytes, encode_one_q5_k>};
const Codec kQ6K{decode_q6_k, encode_all<kLarge, Q6KAt::bytes, encode_one_q6_k>};

}  // namespace trireme::tensor::blocks
