// Each two-operand function and each broadcast form against naive loops in double, at every SIMD level.
#include "backend/cpu/elementwise/binary_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

/// The functions that have vector code.
std::vector<BinaryOp> functions() {
  std::vector<BinaryOp> all;
  for (int op = 0; op < static_cast<int>(BinaryOp::count_); ++op) {
    if (binary_tiles(BinaryOp(op)).vector_vector != nullptr) all.push_back(BinaryOp(op));
  }
  return all;
}

double exact(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add_: return a + b;
    case BinaryOp::sub_: return a - b;
    case BinaryOp::mul_: return a * b;
    case BinaryOp::div_: return a / b;
    case BinaryOp::min_: return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case BinaryOp::max_: return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case BinaryOp::prelu_: return a < 0 ? a * b : a;
    default: ADD_FAILURE() << "function without a formula: " << static_cast<int>(op); return NAN;
  }
}

// Multiples of 1/4 in [-4, 4], including zeros, so that sums and products are exact.
std::vector<float> quarters(size_t n, uint32_t seed) {
  std::vector<float> v(n);
  for (float& x : v) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int>(seed >> 24) % 33 - 16) / 4.0f;
  }
  return v;
}

struct Steps {
  int64_t a_row, a_col, b_row, b_col;
};

Steps steps_of(BinaryForm form, int64_t cols) {
  switch (form) {
    case BinaryForm::vector_vector: return {cols, 1, cols, 1};
    case BinaryForm::vector_scalar: return {cols, 1, 0, 0};
    case BinaryForm::scalar_vector: return {0, 0, cols, 1};
    case BinaryForm::vector_row: return {cols, 1, 0, 1};
    case BinaryForm::row_vector: return {0, 1, cols, 1};
    case BinaryForm::vector_column: return {cols, 1, 1, 0};
    case BinaryForm::column_vector: return {1, 0, cols, 1};
  }
  return {};
}

constexpr BinaryForm kForms[] = {
    BinaryForm::vector_vector, BinaryForm::vector_scalar, BinaryForm::scalar_vector, BinaryForm::vector_row,
    BinaryForm::row_vector,    BinaryForm::vector_column, BinaryForm::column_vector};

void check(BinaryOp op, BinaryForm form, int64_t rows, int64_t cols, base::ThreadPool& pool) {
  const size_t n = static_cast<size_t>(rows * cols);
  // An offset of one float misaligns every operand; the guard after y must stay unchanged.
  const std::vector<float> a = quarters(n + 40, 1), b = quarters(n + 40, 2);
  std::vector<float> y(n + 2, -77.0f);
  binary(op, form, {a.data() + 1, b.data() + 1, y.data() + 1, rows, cols}, pool);
  const Steps s = steps_of(form, cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const double av = a[static_cast<size_t>(1 + r * s.a_row + c * s.a_col)];
      const double bv = b[static_cast<size_t>(1 + r * s.b_row + c * s.b_col)];
      const double want = exact(op, av, bv), got = y[static_cast<size_t>(1 + r * cols + c)];
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << static_cast<int>(op) << " of " << av << " " << bv;
      } else if (std::isinf(want)) {
        ASSERT_EQ(got, want);
      } else {
        ASSERT_NEAR(got, want, 1e-6 * (1 + std::abs(want)))
            << static_cast<int>(op) << " of " << av << " " << bv;
      }
    }
  }
  ASSERT_EQ(y[0], -77.0f);
  ASSERT_EQ(y[n + 1], -77.0f);
}

class BinaryAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
};

TEST_P(BinaryAtLevel, EveryFunctionFormAndSize) {
  base::ThreadPool pool(1);
  EXPECT_GE(functions().size(), 7u);
  for (BinaryOp op : functions()) {
    for (BinaryForm form : kForms) {
      for (int64_t rows : {0, 1, 3}) {
        for (int64_t cols : {0, 1, 5, 16, 33, 70}) check(op, form, rows, cols, pool);
      }
    }
  }
}

TEST_P(BinaryAtLevel, NanWinsInMinAndMax) {
  base::ThreadPool pool(1);
  const std::vector<float> a = {NAN, 1.0f, NAN}, b = {1.0f, NAN, NAN};
  for (BinaryOp op : {BinaryOp::min_, BinaryOp::max_}) {
    std::vector<float> y(3);
    binary(op, BinaryForm::vector_vector, {a.data(), b.data(), y.data(), 1, 3}, pool);
    for (float v : y) EXPECT_TRUE(std::isnan(v));
  }
}

TEST_P(BinaryAtLevel, SelectAndMuladd) {
  const std::vector<float> c = quarters(37, 3), a = quarters(37, 4), b = quarters(37, 5);
  for (int scalars = 0; scalars < 8; ++scalars) {
    const bool cs = scalars & 1, as = scalars & 2, bs = scalars & 4;
    std::vector<float> y(37), z(37);
    select_tile()({c.data(), a.data(), b.data(), cs, as, bs}, y.data(), 37);
    muladd_tile()({c.data(), a.data(), b.data(), cs, as, bs}, z.data(), 37);
    for (size_t i = 0; i < 37; ++i) {
      const float cv = c[cs ? 0 : i], av = a[as ? 0 : i], bv = b[bs ? 0 : i];
      ASSERT_EQ(y[i], cv != 0 ? av : bv);
      ASSERT_EQ(z[i], av * bv + cv);  // multiples of 1/4: exact with or without a fused multiply-add
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, BinaryAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Binary, SameBitsForEveryThreadCount) {
  base::ThreadPool one(1), four(4);
  const std::vector<float> a = quarters(301 * 997, 6), b = quarters(301 * 997, 7);
  for (BinaryForm form : kForms) {
    std::vector<float> y(a.size()), z(a.size());
    binary(BinaryOp::div_, form, {a.data(), b.data(), y.data(), 301, 997}, one);
    binary(BinaryOp::div_, form, {a.data(), b.data(), z.data(), 301, 997}, four);
    EXPECT_EQ(0, std::memcmp(y.data(), z.data(), y.size() * 4));
  }
}

}  // namespace
}  // namespace trireme::cpu
