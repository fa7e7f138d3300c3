// Each elementwise function against the C library in double, at every SIMD level, size and alignment.
#include "backend/cpu/elementwise/unary_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "backend/cpu/simd/simd_level.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  UnaryOp op;
  const char* name;
  std::function<double(double)> exact;
  double lo, hi;
  double ulps;   // of the exact result
  double floor;  // absolute error that is forgiven, for functions that cancel
  UnaryParams params;
};

double expm1_scaled(double x, double a) { return x > 0 ? x : a * std::expm1(x); }

std::vector<Case> smooth_cases() {
  using U = UnaryOp;
  return {
      {U::elu, "elu", [](double x) { return expm1_scaled(x, 1.5); }, -20, 20, 3, 0, {1.5f, 0}},
      {U::selu, "selu", [](double x) { return 1.25 * expm1_scaled(x, 1.5); }, -20, 20, 4, 0, {1.5f, 1.25f}},
      {U::celu, "celu", [](double x) { return x > 0 ? x : 2 * std::expm1(x / 2); }, -20, 20, 4, 0, {2.0f, 0}},
      {U::sigmoid, "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80, 3, 0, {}},
      {U::silu, "silu", [](double x) { return x / (1 + std::exp(-x)); }, -80, 80, 4, 0, {1, 0}},
      {U::mish, "mish", [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }, -40, 60, 6, 0, {}},
      {U::softplus,
       "softplus",
       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); },
       -80,
       80,
       3,
       0,
       {}},
      {U::softsign, "softsign", [](double x) { return x / (1 + std::abs(x)); }, -9, 9, 2, 0, {}},
      {U::tanh, "tanh", [](double x) { return std::tanh(x); }, -12, 12, 3, 0, {}},
      {U::exp, "exp", [](double x) { return std::exp(x); }, -87, 88.7, 1.6, 0, {}},
      {U::expm1, "expm1", [](double x) { return std::expm1(x); }, -40, 88, 3, 0, {}},
      {U::log, "log", [](double x) { return std::log(x); }, 1e-6, 50, 3, 0, {}},
      {U::log1p, "log1p", [](double x) { return std::log1p(x); }, -0.99, 30, 4, 0, {}},
      {U::erf, "erf", [](double x) { return std::erf(x); }, -6, 6, 4, 0, {}},
      {U::gelu_erf,
       "gelu_erf",
       [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); },
       -8,
       8,
       4,
       3e-7,
       {}},
      {U::gelu_tanh,
       "gelu_tanh",
       [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); },
       -8,
       8,
       4,
       6e-7,
       {}},
      {U::sin, "sin", [](double x) { return std::sin(x); }, -100, 100, 4, 2.4e-7, {}},
      {U::cos, "cos", [](double x) { return std::cos(x); }, -100, 100, 4, 2.4e-7, {}},
      {U::tan, "tan", [](double x) { return std::tan(x); }, -1.5, 1.5, 2, 0, {}},
      {U::asin, "asin", [](double x) { return std::asin(x); }, -1, 1, 2, 0, {}},
      {U::acos, "acos", [](double x) { return std::acos(x); }, -1, 1, 2, 0, {}},
      {U::atan, "atan", [](double x) { return std::atan(x); }, -9, 9, 2, 0, {}},
      {U::sinh, "sinh", [](double x) { return std::sinh(x); }, -9, 9, 2, 0, {}},
      {U::cosh, "cosh", [](double x) { return std::cosh(x); }, -9, 9, 2, 0, {}},
      {U::asinh, "asinh", [](double x) { return std::asinh(x); }, -9, 9, 2, 0, {}},
      {U::acosh, "acosh", [](double x) { return std::acosh(x); }, 1, 9, 2, 0, {}},
      {U::atanh, "atanh", [](double x) { return std::atanh(x); }, -0.99, 0.99, 2, 0, {}},
      {U::pow_scalar, "pow_scalar", [](double x) { return std::pow(x, 1.5); }, 0, 50, 2, 0, {1.5f, 0}},
      {U::pow_scalar, "cube", [](double x) { return x * x * x; }, -9, 9, 2, 0, {3.0f, 0}},
      {U::pow_scalar, "pow_rsqrt", [](double x) { return 1 / std::sqrt(x); }, 0.1, 9, 2, 0, {-0.5f, 0}},
      {U::sqrt, "sqrt", [](double x) { return std::sqrt(x); }, 0, 9, 1, 0, {}},
      {U::rsqrt, "rsqrt", [](double x) { return 1 / std::sqrt(x); }, 0.1, 9, 2, 0, {}},
      {U::reciprocal, "reciprocal", [](double x) { return 1 / x; }, 0.1, 9, 1, 0, {}},
  };
}

std::vector<Case> exact_cases() {
  using U = UnaryOp;
  return {
      {U::identity, "identity", [](double x) { return x; }, -9, 9, 0, 0, {}},
      {U::relu, "relu", [](double x) { return x > 0 ? x : 0; }, -9, 9, 0, 0, {}},
      {U::leaky_relu, "leaky_relu", [](double x) { return x < 0 ? 0.25 * x : x; }, -9, 9, 0, 0, {0.25f, 0}},
      {U::thresholded_relu, "thresholded", [](double x) { return x > 1 ? x : 0; }, -9, 9, 0, 0, {1, 0}},
      {U::hard_sigmoid,
       "hard_sigmoid",
       [](double x) { return std::clamp(0.25 * x + 0.5, 0.0, 1.0); },
       -9,
       9,
       1,
       1e-7,
       {0.25f, 0.5f}},
      {U::hard_swish,
       "hard_swish",
       [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); },
       -9,
       9,
       3,
       4e-7,
       {}},
      {U::square, "square", [](double x) { return x * x; }, -9, 9, 1, 0, {}},
      {U::abs, "abs", [](double x) { return std::abs(x); }, -9, 9, 0, 0, {}},
      {U::neg, "neg", [](double x) { return -x; }, -9, 9, 0, 0, {}},
      {U::floor, "floor", [](double x) { return std::floor(x); }, -9, 9, 0, 0, {}},
      {U::ceil, "ceil", [](double x) { return std::ceil(x); }, -9, 9, 0, 0, {}},
      {U::round, "round", [](double x) { return std::nearbyint(x); }, -9, 9, 0, 0, {}},
      {U::trunc, "trunc", [](double x) { return std::trunc(x); }, -9, 9, 0, 0, {}},
      {U::sign, "sign", [](double x) { return x > 0   ? 1
                                              : x < 0 ? -1
                                                      : 0; }, -9, 9, 0, 0, {}},
      {U::clip, "clip", [](double x) { return std::clamp(x, -2.0, 3.0); }, -9, 9, 0, 0, {-2, 3}},
      {U::shrink,
       "shrink",
       [](double x) { return x < -1.5  ? x + 0.5
                             : x > 1.5 ? x - 0.5
                                       : 0; },
       -9,
       9,
       1,
       0,
       {0.5f, 1.5f}},
      {U::affine, "affine", [](double x) { return 0.5 * x + 3; }, -9, 9, 1, 3e-7, {0.5f, 3}},
      {U::logical_not, "not", [](double x) { return x == 0; }, -9, 9, 0, 0, {}},
      {U::is_nan, "is_nan", [](double x) { return std::isnan(x); }, -9, 9, 0, 0, {}},
      {U::is_inf, "is_inf", [](double x) { return std::isinf(x); }, -9, 9, 0, 0, {}},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = smooth_cases();
  for (Case& c : exact_cases()) cases.push_back(c);
  return cases;
}

std::vector<float> inputs(const Case& c, size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] =
        static_cast<float>(c.lo + (c.hi - c.lo) * (static_cast<double>(i) + 0.37) / static_cast<double>(n));
    // Small magnitudes and halves, where rounding and cancellation show.
    if (i % 7 == 3 && c.lo < 0 && c.hi > 0) x[i] *= 1e-3f;
    if (i % 11 == 5 && c.lo <= -9) x[i] = std::round(x[i] * 2) / 2;
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
      const double want = c.exact(x[i]);
      const double bound = std::max(c.ulps * ulp_of(want), c.floor);
      const double error = std::abs(y[i] - want);
      if (error > bound && error / ulp_of(want) > worst) worst = error / ulp_of(want), at = x[i];
    }
    EXPECT_EQ(worst, 0) << c.name << " ulps at x = " << at;
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
            << c.name;
        for (int64_t i = 0; i < 200; ++i) {
          const bool outside = i < offset || i >= offset + n;
          ASSERT_TRUE(!outside || y[static_cast<size_t>(i)] == -77.0f) << c.name << " at " << i;
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
  EXPECT_EQ(f(UnaryOp::exp, -kInf), 0.0f);
  EXPECT_EQ(f(UnaryOp::exp, kInf), kInf);
  EXPECT_EQ(f(UnaryOp::exp, 0.0f), 1.0f);
  EXPECT_EQ(f(UnaryOp::log, 0.0f), -kInf);
  EXPECT_EQ(f(UnaryOp::log, kInf), kInf);
  EXPECT_TRUE(std::isnan(f(UnaryOp::log, -1.0f)));
  EXPECT_EQ(f(UnaryOp::log, 1.0f), 0.0f);
  EXPECT_NEAR(f(UnaryOp::log, 1e-40f), std::log(1e-40), 1e-4);
  EXPECT_EQ(f(UnaryOp::log1p, -1.0f), -kInf);
  EXPECT_EQ(f(UnaryOp::tanh, kInf), 1.0f);
  EXPECT_EQ(f(UnaryOp::erf, -kInf), -1.0f);
  EXPECT_EQ(f(UnaryOp::expm1, kInf), kInf);
  EXPECT_EQ(f(UnaryOp::sigmoid, -kInf), 0.0f);
  EXPECT_NEAR(f(UnaryOp::sin, 1e9f), std::sin(1e9), 1e-6);
  EXPECT_EQ(f(UnaryOp::round, 2.5f), 2.0f);
  EXPECT_EQ(f(UnaryOp::round, -3.5f), -4.0f);
  EXPECT_EQ(f(UnaryOp::pow_scalar, 0.0f, {-1.0f, 0}), kInf);
  EXPECT_EQ(f(UnaryOp::is_nan, nan), 1.0f);
  EXPECT_EQ(f(UnaryOp::is_inf, -kInf), 1.0f);
  for (const Case& c : all_cases()) {
    if (c.op == UnaryOp::is_nan || c.op == UnaryOp::is_inf || c.op == UnaryOp::logical_not ||
        c.op == UnaryOp::thresholded_relu) {
      continue;
    }
    EXPECT_TRUE(std::isnan(f(c.op, nan, c.params))) << c.name;
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
    EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4)) << c.name;
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(seen[i]) << "function without a case: " << i;
}

}  // namespace
}  // namespace trireme::cpu
