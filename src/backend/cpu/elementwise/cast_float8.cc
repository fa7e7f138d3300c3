// Conversions of 8-bit floats with exponent and mantissa arithmetic: a value is divided by its quantum and
// rounded to an integer.
#include "backend/cpu/elementwise/cast_float8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::cpu {
namespace {

struct Format {
  int mantissa, bias;
  uint8_t largest;  // code of the largest finite value
  bool infinity;    // has infinities
  bool fnuz;        // one zero, NaN is 0x80
};

constexpr Format kFormats[] = {{3, 7, 0x7E, false, false},
                               {3, 8, 0x7F, false, true},
                               {2, 15, 0x7B, true, false},
                               {2, 16, 0x7F, false, true}};

const Format& format_of(Float8 f) { return kFormats[static_cast<int>(f)]; }

}  // namespace

uint8_t float8_encode(Float8 format, float x, bool saturate) {
  const Format& f = format_of(format);
  const uint8_t sign = std::signbit(x) ? 0x80 : 0x00;
  const uint8_t nan = f.fnuz ? uint8_t{0x80} : static_cast<uint8_t>(sign | 0x7F);
  if (x != x) return nan;
  const uint8_t beyond = saturate     ? static_cast<uint8_t>(sign | f.largest)
                         : f.infinity ? static_cast<uint8_t>(sign | (f.largest + 1))
                                      : nan;
  const float magnitude = std::fabs(x);
  if (magnitude > 1.0e6f) return beyond;  // beyond every format, including those with infinities
  // quantum = 2^(exponent - mantissa). Below the smallest normal number the exponent stays the same, and the
  // code is the count itself.
  const int exponent_bits = static_cast<int>(std::bit_cast<uint32_t>(magnitude) >> 23) - 127;
  const int exponent = std::max(exponent_bits, 1 - f.bias);
  const double count = std::nearbyint(std::ldexp(static_cast<double>(magnitude), f.mantissa - exponent));
  // A count that rounds up to the next power of two carries into the exponent.
  const int code = ((exponent + f.bias - 1) << f.mantissa) + static_cast<int>(count);
  if (code > f.largest) return beyond;
  if (code == 0 && f.fnuz) return 0;
  return static_cast<uint8_t>(sign | code);
}

float float8_decode(Float8 format, uint8_t code) {
  const Format& f = format_of(format);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  const int magnitude = code & 0x7F;
  if (f.fnuz && code == 0x80) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude > f.largest) {
    const bool infinite = f.infinity && magnitude == f.largest + 1;
    return infinite ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  const int exponent = magnitude >> f.mantissa, fraction = magnitude & ((1 << f.mantissa) - 1);
  const int count = exponent == 0 ? fraction : fraction + (1 << f.mantissa);
  return sign * std::ldexp(static_cast<float>(count), std::max(exponent, 1) - f.bias - f.mantissa);
}

}  // namespace trireme::cpu
