// Division by numbers that a launch's host knows: a multiplication for indices below 2^31, else the
// machine's.
#pragma once

#include <cstdint>

#include "backend/cuda/device/lane.h"

namespace trireme::cuda {

/// n / d and n % d for n in [0, 2^63), without a division. Source: Granlund & Montgomery 1994.
class Divider {
 public:
  Divider() = default;
  /// For n in [0, below): with 32-bit numbers where they do. d = 0, of tensors without elements, divides
  /// nothing.
  Divider(int64_t d, int64_t below)
      : divisor_(d < 1 ? 1 : d), is_small_(below <= INT32_MAX && d <= INT32_MAX) {
    while ((uint64_t{1} << shift_) < static_cast<uint64_t>(divisor_)) ++shift_;
    const uint64_t by = static_cast<uint64_t>(divisor_), rest = (uint64_t{1} << shift_) - by;
    const int bits = is_small_ ? 32 : 64;
    magic_ = static_cast<uint64_t>((static_cast<unsigned __int128>(rest) << bits) / by + 1);
  }
  TRIREME_DEVICE int64_t divisor() const { return divisor_; }
  TRIREME_DEVICE int64_t quotient(int64_t n) const {
    if (is_small_) {
      const auto low = static_cast<uint32_t>(n);
      const auto high = static_cast<uint32_t>(uint64_t{low} * static_cast<uint32_t>(magic_) >> 32);
      return static_cast<int64_t>((high + low) >> shift_);
    }
    const auto wide = static_cast<uint64_t>(n);
    return static_cast<int64_t>((high_product(magic_, wide) + wide) >> shift_);
  }
  /// Leaves the quotient in n, returns the remainder.
  TRIREME_DEVICE int64_t step(int64_t& n) const {
    const int64_t q = quotient(n), r = n - q * divisor_;
    n = q;
    return r;
  }

 private:
  static TRIREME_DEVICE uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
  }
  int64_t divisor_ = 1;
  uint64_t magic_ = 1;
  uint8_t shift_ = 0;
  bool is_small_ = true;
};

}  // namespace trireme::cuda
