// For tests: floats that differ from one another and are the same in every run.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::cpu {

/// n sines in [-1, 1]; another phase gives other values.
inline std::vector<float> wave(int64_t n, double phase) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(std::sin(static_cast<double>(i * i % 7919) + phase));
  return v;
}

}  // namespace trireme::cpu
