// A shuffled order by random access: a bijection of [0, size) computed from (seed, epoch), nothing stored.
#pragma once

#include <bit>
#include <cstdint>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::data {

/// position -> sample, O(1) time and memory. An alternating Feistel network over Philox on the smallest
/// domain of 2^bits >= size; values outside [0, size) walk along their cycle until they are inside (Black &
/// Rogaway 2002), less than two steps on average from 64 samples on.
class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t epoch, int64_t size) : seed_(seed), epoch_(epoch), size_(size) {
    base::check(size >= 0, "permutation of a negative size: ", size);
    // Under 6 bits the two halves are too short to mix: small sizes walk a little longer instead.
    const int wanted = std::bit_width(size > 1 ? static_cast<uint64_t>(size - 1) : uint64_t{0});
    const int bits = wanted < kMinBits ? kMinBits : wanted;
    low_bits_ = bits / 2;
    low_mask_ = (uint64_t{1} << low_bits_) - 1;
    high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
  }

  int64_t size() const { return size_; }

  /// The sample at `position` in [0, size()).
  int64_t operator()(int64_t position) const {
    base::check(position >= 0 && position < size_, "position is outside of the permutation: ", position);
    uint64_t value = static_cast<uint64_t>(position);
    do {
      value = mix(value);
    } while (value >= static_cast<uint64_t>(size_));
    return static_cast<int64_t>(value);
  }

 private:
  static constexpr int kMinBits = 6;
  static constexpr uint64_t kRounds = 8;

  // Each round changes one half by a function of the other: a bijection whatever the function.
  uint64_t mix(uint64_t value) const {
    uint64_t low = value & low_mask_;
    uint64_t high = value >> low_bits_;
    for (uint64_t round = 0; round < kRounds; round += 2) {
      high ^= scramble(round, low) & high_mask_;
      low ^= scramble(round + 1, high) & low_mask_;
    }
    return high << low_bits_ | low;
  }

  uint64_t scramble(uint64_t round, uint64_t half) const {
    const base::PhiloxBlock block = base::philox_block(seed_, epoch_, round << 32 | half);
    return uint64_t{block[0]} << 32 | block[1];
  }

  uint64_t seed_, epoch_;
  int64_t size_;
  int low_bits_ = 0;
  uint64_t low_mask_ = 0, high_mask_ = 0;
};

}  // namespace trireme::data
