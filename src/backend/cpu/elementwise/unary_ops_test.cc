// Each elementwise function against the C library in double, at every SIMD level, size and alignment.
#include "backend/cpu/elementwise/unary_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/simd/simd_level.h"
#include "base/threads/thread_pool.h"
#include "tests/unary_cases.h"

namespace trireme::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using tests::UnaryCase;

struct Case {
  UnaryOp op;
  UnaryCase of;
  UnaryParams params;
};

/// The rows of tests/unary_cases.h whose functions have vector code, and powers with a constant exponent.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](UnaryOp op, const UnaryCase& c) {
    cases.push_back({op, c, {static_cast<float>(c.a), static_cast<float>(c.b)}});
  };
  for (const UnaryCase& c : tests::kUnaryCases) {
    if (const auto op = unary_op_of(c.name)) add(*op, c);
  }
  constexpr auto kPower = [](double x, double a, double) { return std::pow(x, a); };
  for (double a : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0})
    add(UnaryOp::pow_scalar_, {.name = "pow", .formula = kPower, .range = {0, 50}, .a = a, .ulps = 2});
  for (double a : {-0.5, -1.0})
    add(UnaryOp::pow_scalar_, {.name = "pow", .formula = kPower, .range = {0.1, 9}, .a = a, .ulps = 2});
  return cases;
}

std::vector<float> inputs(const Case& c, size_t n) {
  const auto [low, high] = c.of.wide;
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(low + (high - low) * (static_cast<double>(i) + 0.37) / static_cast<double>(n));
    // Small magnitudes and halves, which reveal errors of rounding and cancellation.
    if (i % 7 == 3 && low < 0 && high > 0) x[i] *= 1e-3f;
    if (i % 11 == 5 && low <= -9) x[i] = std::round(x[i] * 2) / 2;
  }
  return x;
}

double ulp_of(double v) {
  const float f = std::max(std::abs(static_cast<float>(v)), std::numeric_limits<float>::min());
  return static_cast<double>(std::nextafter(f, kInf)) - f;
}

class UnaryAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{1};
};

TEST_P(UnaryAtLevel, MatchesTheLibraryInDouble) {
  for (const Case& c : all_cases()) {
    const std::vector<float> x = inputs(c, 20011);
    std::vector<float> y(x.size());
    unary({c.op, c.params}, x.data(), y.data(), static_cast<int64_t>(x.size()), pool_);
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = c.of.formula(x[i], c.of.a, c.of.b);
      const double bound = std::max(c.of.ulps * ulp_of(want), c.of.absolute);
      const double error = std::abs(y[i] - want);
      if (error > bound && error / ulp_of(want) > worst) worst = error / ulp_of(want), at = x[i];
    }
    EXPECT_EQ(worst, 0) << c.of.name << " ulps at x = " << at;
  }
}

TEST_P(UnaryAtLevel, SizesAndMisalignmentTouchNothingElse) {
  for (const Case& c : all_cases()) {
    const std::vector<float> x = inputs(c, 200);
    std::vector<float> whole(200);
    unary({c.op, c.params}, x.data(), whole.data(), 200, pool_);
    for (int64_t offset : {0, 1, 3}) {
      for (int64_t n : {0, 1, 2, 7, 15, 16, 17, 31, 33, 65, 129}) {
        std::vector<float> y(200, -77.0f);
        unary({c.op, c.params}, x.data() + offset, y.data() + offset, n, pool_);
        ASSERT_EQ(0, std::memcmp(y.data() + offset, whole.data() + offset, static_cast<size_t>(n) * 4))
            << c.of.name;
        for (int64_t i = 0; i < 200; ++i) {
          const bool outside = i < offset || i >= offset + n;
          ASSERT_TRUE(!outside || y[static_cast<size_t>(i)] == -77.0f) << c.of.name << " at " << i;
        }
      }
    }
  }
}

TEST_P(UnaryAtLevel, SpecialValues) {
  const float nan = std::nanf("");
  auto f = [&](UnaryOp op, float x, UnaryParams p = {}) {
    unary({op, p}, &x, &x, 1, pool_);
    return x;
  };
  EXPECT_EQ(f(UnaryOp::exp_, -kInf), 0.0f);
  EXPECT_EQ(f(UnaryOp::exp_, kInf), kInf);
  EXPECT_EQ(f(UnaryOp::exp_, 0.0f), 1.0f);
  EXPECT_EQ(f(UnaryOp::log_, 0.0f), -kInf);
  EXPECT_EQ(f(UnaryOp::log_, kInf), kInf);
  EXPECT_TRUE(std::isnan(f(UnaryOp::log_, -1.0f)));
  EXPECT_EQ(f(UnaryOp::log_, 1.0f), 0.0f);
  EXPECT_NEAR(f(UnaryOp::log_, 1e-40f), std::log(1e-40), 1e-4);
  EXPECT_EQ(f(UnaryOp::tanh_, kInf), 1.0f);
  EXPECT_EQ(f(UnaryOp::erf_, -kInf), -1.0f);
  EXPECT_EQ(f(UnaryOp::sigmoid_, -kInf), 0.0f);
  EXPECT_NEAR(f(UnaryOp::sin_, 1e9f), std::sin(1e9), 1e-6);
  EXPECT_EQ(f(UnaryOp::round_, 2.5f), 2.0f);
  EXPECT_EQ(f(UnaryOp::round_, -3.5f), -4.0f);
  EXPECT_EQ(f(UnaryOp::pow_scalar_, 0.0f, {-1.0f, 0}), kInf);
  for (const Case& c : all_cases()) {
    // NaN is not above the threshold, and x^0 is 1 for any x.
    if (c.op == UnaryOp::thresholded_relu_ || (c.op == UnaryOp::pow_scalar_ && c.of.a == 0)) continue;
    EXPECT_TRUE(std::isnan(f(c.op, nan, c.params))) << c.of.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, UnaryAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Unary, CoversEveryFunctionAndEveryThreadCount) {
  std::vector<bool> seen(static_cast<size_t>(UnaryOp::count_));
  base::ThreadPool one(1), four(4);
  for (const Case& c : all_cases()) {
    seen[static_cast<size_t>(c.op)] = true;
    const std::vector<float> x = inputs(c, 100003);
    std::vector<float> a(x.size()), b(x.size());
    unary({c.op, c.params}, x.data(), a.data(), static_cast<int64_t>(x.size()), one);
    unary({c.op, c.params}, x.data(), b.data(), static_cast<int64_t>(x.size()), four);
    EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4)) << c.of.name;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    const bool has_code = unary_tile(UnaryOp(i)) != nullptr;
    EXPECT_EQ(seen[i], has_code) << "function without a row in tests/unary_cases.h: " << i;
  }
}

}  // namespace
}  // namespace trireme::cpu
