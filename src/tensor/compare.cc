// Measures the distance between two tensors.
#include "tensor/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace trireme::tensor {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool are_comparable(const Tensor& a, const Tensor& b) {
  return a.dims() == b.dims() && a.dtype() == b.dtype();
}

template <class T>
double distance(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // In integers: a double has fewer digits than 64 bits, and two's complement holds any difference.
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<double>(a < b ? y - x : x - y);
  } else {
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
    const double d = std::abs(x - y);
    return std::isnan(d) ? kInfinity : d;
  }
}

/// Largest |a - b| / max(|b|, floor), or largest |a - b| unless `relative`.
double worst_over(const Tensor& a, const Tensor& b, double floor, bool relative) {
  double worst = 0;
  visit_dtype(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto x = a.data<T>(), y = b.data<T>();
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = distance(x[i], y[i]);
      if (error == 0) continue;
      // Of an infinite b, an infinite difference is no number.
      const double part = error / (relative ? std::max(std::abs(static_cast<double>(y[i])), floor) : 1.0);
      worst = std::isnan(part) ? kInfinity : std::max(worst, part);
    }
  });
  return worst;
}

}  // namespace

double relative_error(const Tensor& actual, const Tensor& expected) {
  if (!are_comparable(actual, expected)) return kInfinity;
  double largest = 0;
  for (double v : expected.to_doubles())
    largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : largest;
  // Elements far below the tensor's scale are compared relative to 1 % of the scale: their digits are noise.
  return worst_over(actual, expected, std::max(largest * 1e-2, 1e-30), true);
}

double absolute_error(const Tensor& actual, const Tensor& expected) {
  if (!are_comparable(actual, expected)) return kInfinity;
  return worst_over(actual, expected, 0, false);
}

std::string mismatch(const Tensor& actual, const Tensor& expected) {
  if (!are_comparable(actual, expected))
    return base::concat("is ", actual.type().to_string(), ", expected ", expected.type().to_string());
  if (std::isfinite(relative_error(actual, expected)) && std::isfinite(absolute_error(actual, expected)))
    return "";
  const std::vector<double> a = actual.to_doubles(), b = expected.to_doubles();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(distance(a[i], b[i])))
      return base::concat("is ", a[i], " at element ", i, ", expected ", b[i]);
  }
  return "differs by more than a number can say";
}

}  // namespace trireme::tensor
