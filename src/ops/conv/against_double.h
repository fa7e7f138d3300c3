// For tests of convolutions: operands in double, and how far results lie from those in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/test_eval.h"

namespace trireme::ops::testing {

/// Uniform values in [-1, 1).
inline Tensor random_double(tensor::Dims dims, uint64_t seed) {
  return random_tensor(DType::f64, std::move(dims), -1, 1, seed);
}

/// The values of `t` as f64; an absent operand stays absent.
inline Tensor in_double(const Tensor& t) {
  if (!t.defined()) return t;
  Tensor out = Tensor::empty(DType::f64, t.dims());
  const std::vector<double> values = t.to_doubles();
  std::copy(values.begin(), values.end(), out.mutable_data<double>().begin());
  return out;
}

/// The largest difference, relative to the largest expected value.
inline double largest_difference(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  double difference = 0, largest = 1e-30;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

}  // namespace trireme::ops::testing
