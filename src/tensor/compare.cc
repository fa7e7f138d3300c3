// How far one tensor is from another.
#include "tensor/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::tensor {

double relative_error(const Tensor& actual, const Tensor& expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.dims() != expected.dims() || actual.dtype() != expected.dtype()) return kInfinity;
  const std::vector<double> a = actual.to_doubles(), b = expected.to_doubles();
  double largest = 0;
  for (double v : b) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  // Elements far below the tensor's scale are compared against 1 % of that scale: their own digits are noise.
  const double floor = std::max(largest * 1e-2, 1e-30);
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double error = std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), floor);
    worst = std::isnan(error) ? kInfinity : std::max(worst, error);
  }
  return worst;
}

}  // namespace trireme::tensor
