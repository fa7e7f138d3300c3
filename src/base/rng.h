// Random numbers as a function of (seed, stream, position): Philox4x32-10, so that a value depends on no
// order of calls.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace trireme::base {

using PhiloxBlock = std::array<uint32_t, 4>;

/// The bijection of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): ten rounds, keyed.
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// Block `index` of a stream: four independent words.
constexpr PhiloxBlock philox_block(uint64_t seed, uint64_t stream, uint64_t index) {
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// Uniform in [0, 1): 24 bits, exact in f32.
constexpr float uniform_f32(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
/// Uniform in [0, 1): 53 bits.
constexpr double uniform_f64(uint32_t high, uint32_t low) {
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

/// Reads a stream from its start. Two with the same seed and stream give the same numbers; copies go on
/// alike. Fits the standard's UniformRandomBitGenerator, but prefer the members: the standard's distributions
/// vary by library.
class Rng {
 public:
  using result_type = uint32_t;
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return UINT32_MAX; }
  uint32_t operator()() {
    if (used_ == 4) {
      block_ = philox_block(seed_, stream_, index_++);
      used_ = 0;
    }
    return block_[used_++];
  }

  /// Uniform in [0, 1).
  double uniform() {
    const uint32_t high = (*this)();
    return uniform_f64(high, (*this)());
  }
  /// Uniform in [0, bound), without bias; bound > 0.
  uint64_t below(uint64_t bound) {
    const uint64_t skip =
        (0 - bound) % bound;  // 2^64 mod bound: values under it would favour the small results
    while (true) {
      const uint64_t high = (*this)();
      const uint64_t value = high << 32 | (*this)();
      if (value >= skip) return value % bound;
    }
  }
  /// Standard normal, by Box and Muller: two uniforms give one value.
  double normal() {
    const double u = 1 - uniform();  // in (0, 1]
    const double angle = 6.283185307179586 * uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(angle);
  }
  /// Exponential with this mean: the gaps of a Poisson process.
  double exponential(double mean) { return -mean * std::log(1 - uniform()); }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t index_ = 0;  // of the next block
  PhiloxBlock block_{};
  unsigned used_ = 4;  // words of block_ given out
};

}  // namespace trireme::base
