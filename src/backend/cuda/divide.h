// Division by numbers that a launch's host knows: a multiplication for indices below 2^31, else the
// machine's.
#pragma once

#include <cstdint>

#include "backend/cuda/lane.h"

namespace trireme::cuda {

/// n / d and n % d. Source: Granlund & Montgomery 1994, with N = 32 and n < 2^31.
class Divider {
 public:
  Divider() = default;
  /// For n in [0, below). d = 0, of tensors without elements, divides nothing.
  Divider(int64_t d, int64_t below)
      : divisor_(d < 1 ? 1 : d), is_small_(below <= INT32_MAX && d <= INT32_MAX) {
    if (!is_small_) return;
    while ((int64_t{1} << shift_) < divisor_) ++shift_;
    const uint64_t one = 1, by = static_cast<uint64_t>(divisor_);
    magic_ = static_cast<uint32_t>((one << 32) * ((one << shift_) - by) / by + 1);
  }
  TRIREME_DEVICE int64_t divisor() const { return divisor_; }
  TRIREME_DEVICE int64_t quotient(int64_t n) const {
    if (!is_small_) return n / divisor_;
    const auto low = static_cast<uint32_t>(n);
    const auto high = static_cast<uint32_t>(static_cast<uint64_t>(low) * magic_ >> 32);
    return static_cast<int64_t>((high + low) >> shift_);
  }
  /// Leaves the quotient in n, returns the remainder.
  TRIREME_DEVICE int64_t step(int64_t& n) const {
    const int64_t q = quotient(n), r = n - q * divisor_;
    n = q;
    return r;
  }

 private:
  int64_t divisor_ = 1;
  uint32_t magic_ = 1;
  uint8_t shift_ = 0;
  bool is_small_ = true;
};

}  // namespace trireme::cuda
