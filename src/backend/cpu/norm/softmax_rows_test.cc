// Softmax against naive loops in double, over masks, axes, sizes, levels and thread counts.
#include "backend/cpu/norm/softmax_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/simd/simd_level.h"

namespace trireme::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> softmax_values(int64_t n, double phase) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(std::sin(static_cast<double>(i * i) + phase) * 6);
  return v;
}

// Softmax of n values that are `stride` apart.
std::vector<double> softmax_of(const std::vector<double>& x, bool log) {
  double max = -HUGE_VAL, sum = 0;
  for (double v : x) max = std::max(max, v);
  for (double v : x) sum += std::exp(v - max);
  std::vector<double> y;
  for (double v : x) y.push_back(log ? v - max - std::log(sum) : std::exp(v - max) / sum);
  return y;
}

class SoftmaxAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{3};
};

TEST_P(SoftmaxAtLevel, Axis) {
  for (bool log : {false, true}) {
    for (int64_t outer : {0, 1, 3}) {
      for (int64_t axis : {1, 2, 17, 64, 100, 1000}) {
        for (int64_t inner : {1, 2, 16, 19, 65}) {
          const std::vector<float> x = softmax_values(outer * axis * inner, 1);
          std::vector<float> y(x.size() + 1, -77.0f);
          softmax_axis({x.data(), y.data(), outer, axis, inner, log}, pool_);
          for (int64_t o = 0; o < outer; ++o) {
            for (int64_t i = 0; i < inner; ++i) {
              std::vector<double> line;
              const auto at = [&](int64_t a) { return static_cast<size_t>((o * axis + a) * inner + i); };
              for (int64_t a = 0; a < axis; ++a) line.push_back(x[at(a)]);
              const std::vector<double> want = softmax_of(line, log);
              for (int64_t a = 0; a < axis; ++a) {
                const double w = want[static_cast<size_t>(a)];
                ASSERT_NEAR(y[at(a)], w, 2e-6 * std::abs(w) + (log ? 3e-7 : 1e-12))
                    << axis << " " << inner << " log " << log;
              }
            }
          }
          ASSERT_EQ(y.back(), -77.0f);
        }
      }
    }
  }
}

TEST_P(SoftmaxAtLevel, RowsUnderTheLowestFloatAreUniform) {
  for (const int64_t cols : {1, 7, 33, 300}) {
    const std::vector<float> x = softmax_values(cols, 2);
    const std::vector<float> mask(static_cast<size_t>(cols), std::numeric_limits<float>::lowest());
    std::vector<float> y(x.size());
    softmax_rows({x.data(), y.data(), 1, cols, 0.25f, {mask.data(), 1, 1, cols, 0, cols}, false}, pool_);
    for (const float p : y) ASSERT_NEAR(p, 1.0 / double(cols), 1e-6) << cols;
  }
}

TEST_P(SoftmaxAtLevel, ScaleAndSharedMask) {
  const int64_t batch = 2, heads = 3, query = 5;
  for (int64_t cols : {1, 7, 16, 33, 128, 300}) {
    for (bool log : {false, true}) {
      const int64_t rows = batch * heads * query;
      const std::vector<float> x = softmax_values(rows * cols, 2);
      // Mask [batch, 1, query, cols], every third element excluded.
      std::vector<float> mask = softmax_values(batch * query * cols, 3);
      for (size_t i = 0; i < mask.size(); ++i) {
        if (i % 3 == 1) mask[i] = -kInf;
      }
      std::vector<float> y(x.size());
      const SoftmaxMask m = {mask.data(), heads, query, query * cols, 0, cols};
      softmax_rows({x.data(), y.data(), rows, cols, 0.25f, m, log}, pool_);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t mask_row = row / (heads * query) * query + row % query;
        std::vector<double> line;
        for (int64_t c = 0; c < cols; ++c) {
          line.push_back(0.25 * x[static_cast<size_t>(row * cols + c)] +
                         mask[static_cast<size_t>(mask_row * cols + c)]);
        }
        const std::vector<double> want = softmax_of(line, log);
        for (int64_t c = 0; c < cols; ++c) {
          const double w = want[static_cast<size_t>(c)], got = y[static_cast<size_t>(row * cols + c)];
          if (std::isnan(w)) {  // all are excluded
            ASSERT_EQ(got, log ? -HUGE_VAL : 0.0);
          } else if (std::isinf(w)) {
            ASSERT_EQ(got, w);
          } else {
            ASSERT_NEAR(got, w, 2e-6 * std::abs(w) + (log ? 3e-7 : 1e-12));
          }
        }
      }
    }
  }
}

TEST_P(SoftmaxAtLevel, Gradient) {
  for (bool log : {false, true}) {
    for (int64_t cols : {1, 5, 16, 70, 257}) {
      const int64_t rows = 4;
      const std::vector<float> x = softmax_values(rows * cols, 4), dy = softmax_values(rows * cols, 5);
      std::vector<float> y(x.size()), dx(x.size());
      softmax_rows({x.data(), y.data(), rows, cols, 0.5f, {}, log}, pool_);
      softmax_rows_grad({y.data(), dy.data(), dx.data(), rows, cols, 0.5f, log}, pool_);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> line;
        for (int64_t c = 0; c < cols; ++c) line.push_back(0.5 * x[static_cast<size_t>(r * cols + c)]);
        const std::vector<double> p = softmax_of(line, false);
        double dot = 0, sum = 0;
        for (int64_t c = 0; c < cols; ++c) {
          dot += p[static_cast<size_t>(c)] * dy[static_cast<size_t>(r * cols + c)];
          sum += dy[static_cast<size_t>(r * cols + c)];
        }
        for (int64_t c = 0; c < cols; ++c) {
          const size_t i = static_cast<size_t>(r * cols + c), k = static_cast<size_t>(c);
          ASSERT_NEAR(dx[i], 0.5 * (log ? dy[i] - p[k] * sum : p[k] * (dy[i] - dot)), 2e-5);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SoftmaxAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Softmax, SameBitsForEveryThreadCountAndAlone) {
  base::ThreadPool one(1), four(4);
  const std::vector<float> x = softmax_values(97 * 531, 6);
  std::vector<float> a(x.size()), b(x.size()), alone(531);
  softmax_rows({x.data(), a.data(), 97, 531}, one);
  softmax_rows({x.data(), b.data(), 97, 531}, four);
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4));
  softmax_rows({x.data() + 531 * 41, alone.data(), 1, 531}, four);
  EXPECT_EQ(0, std::memcmp(a.data() + 531 * 41, alone.data(), 531 * 4));
}

// A column gives the same bits whether it shares its task with others or not.
TEST(Softmax, ColumnsHaveTheSameBitsWhateverIsBesideThem) {
  constexpr int64_t kAxis = 7, kInner = 403;
  std::vector<float> x(kAxis * kInner), y(x.size()), part(kAxis * 9), alone(part.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7919) % 1000) / 100.0f - 5.0f;
  x[20] = -std::numeric_limits<float>::infinity();
  x[300] = std::numeric_limits<float>::quiet_NaN();
  base::ThreadPool pool(1);
  softmax_axis({x.data(), y.data(), 1, kAxis, kInner, false}, pool);
  for (int64_t c = 0; c + 9 <= kInner; c += 9) {
    for (int64_t a = 0; a < kAxis; ++a) std::copy_n(x.data() + a * kInner + c, 9, part.data() + a * 9);
    softmax_axis({part.data(), alone.data(), 1, kAxis, 9, false}, pool);
    for (int64_t a = 0; a < kAxis; ++a) {
      ASSERT_EQ(0, std::memcmp(alone.data() + a * 9, y.data() + a * kInner + c, 9 * sizeof(float)))
          << c << " " << a;
    }
  }
}

TEST(Softmax, UnmaskedRowOfMinusInfinityIsNan) {
  base::ThreadPool pool(1);
  std::vector<float> x = {-kInf, -kInf};
  softmax_rows({x.data(), x.data(), 1, 2}, pool);
  EXPECT_TRUE(std::isnan(x[0]) && std::isnan(x[1]));
}

}  // namespace
}  // namespace trireme::cpu
