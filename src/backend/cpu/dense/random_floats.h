// For tests and benchmarks: floats that look random and are the same in every run.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace trireme::cpu {

/// Uniform values in [-1, 1).
inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = uniform(generator);
  return out;
}

}  // namespace trireme::cpu
