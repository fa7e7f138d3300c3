// Tests the quantised sum against double arithmetic: both types, odd sizes, every SIMD level, rounding to
// even.
#include "backend/cpu/quant/quantized_add.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

template <class T>
void check(bool is_signed, int64_t n) {
  std::vector<T> a(static_cast<size_t>(n)), b(a.size()), y(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<T>(i * 37 + 5);
    b[i] = static_cast<T>(i * 101 + 11);
  }
  const float lowest = is_signed ? -128.0f : 0.0f, highest = is_signed ? 100.0f : 200.0f;
  base::ThreadPool pool(3);
  quantized_add({a.data(), b.data(), y.data(), n, is_signed, 0.5f, 0.25f, 1.5f, lowest, highest}, pool);
  for (size_t i = 0; i < a.size(); ++i) {
    // Factors are powers of two, so the sum in double is exact and ties occur.
    const double sum = std::nearbyint(double(a[i]) * 0.5 + double(b[i]) * 0.25 + 1.5);
    ASSERT_EQ(double(y[i]), std::min(std::max(sum, double(lowest)), double(highest))) << "element " << i;
  }
}

TEST(QuantizedAdd, EqualsDoubleArithmetic) {
  for (const auto& level : simd_levels()) {
    simd_force(level);
    for (int64_t n : {0, 1, 7, 16, 33, 1000, 70001}) {
      check<uint8_t>(false, n);
      check<int8_t>(true, n);
    }
  }
  simd_unforce();
}

}  // namespace
}  // namespace trireme::cpu
