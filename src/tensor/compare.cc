// Measures the distance between two tensors.
#include "tensor/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::tensor {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool are_comparable(const Tensor& a, const Tensor& b) {
  return a.dims() == b.dims() && a.dtype() == b.dtype();
}

/// Largest |a - b| / max(|b|, floor), or largest |a - b| unless `relative`.
double worst_over(const std::vector<double>& a, const std::vector<double>& b, double floor, bool relative) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double error = std::abs(a[i] - b[i]) / (relative ? std::max(std::abs(b[i]), floor) : 1.0);
    worst = std::isnan(error) ? kInfinity : std::max(worst, error);
  }
  return worst;
}

}  // namespace

double relative_error(const Tensor& actual, const Tensor& expected) {
  if (!are_comparable(actual, expected)) return kInfinity;
  const std::vector<double> b = expected.to_doubles();
  double largest = 0;
  for (double v : b) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  // Elements far below the tensor's scale are compared relative to 1 % of the scale: their digits are noise.
  return worst_over(actual.to_doubles(), b, std::max(largest * 1e-2, 1e-30), true);
}

double absolute_error(const Tensor& actual, const Tensor& expected) {
  if (!are_comparable(actual, expected)) return kInfinity;
  return worst_over(actual.to_doubles(), expected.to_doubles(), 0, false);
}

}  // namespace trireme::tensor
