// Normalisations against naive loops in double, over options, sizes, levels and thread counts.
#include "backend/cpu/norm/norm_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/simd/simd_level.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

std::vector<float> norm_values(int64_t n, double phase) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<float>(std::sin(static_cast<double>(i * i % 1009) + phase) * 2 + 0.5);
  }
  return v;
}

struct Moments {
  double mean = 0, variance = 0, square = 0;
};

Moments moments(const std::vector<double>& x) {
  Moments m;
  const double n = static_cast<double>(x.size());
  for (double v : x) m.mean += v / n, m.square += v * v / n;
  for (double v : x) m.variance += (v - m.mean) * (v - m.mean) / n;
  return m;
}

class NormAtLevel : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { simd_force(GetParam()); }
  void TearDown() override { simd_unforce(); }
  base::ThreadPool pool_{3};
};

TEST_P(NormAtLevel, LayerAndRms) {
  for (int64_t cols : {1, 2, 15, 16, 64, 100, 768, 20000}) {
    for (int option = 0; option < 16; ++option) {
      const bool with_scale = option & 1, with_bias = option & 2, with_residual = option & 4,
                 rms = option & 8;
      const int64_t rows = 3;
      const std::vector<float> x = norm_values(rows * cols, 1), r = norm_values(rows * cols, 2),
                               s = norm_values(cols, 3), b = norm_values(cols, 4);
      std::vector<float> y(x.size() + 1, -77.0f), sum(x.size()), mean(3), inverse(3);
      LayerNorm g{x.data(), y.data(), rows, cols};
      g.scale = with_scale ? s.data() : nullptr;
      g.bias = with_bias ? b.data() : nullptr;
      g.residual = with_residual ? r.data() : nullptr;
      g.sum_out = with_residual && with_bias ? sum.data() : nullptr;
      g.inverse_out = inverse.data();
      if (rms)
        rms_norm(g, pool_, 0.5f);
      else
        layer_norm(g, pool_);
      for (int64_t row = 0; row < rows; ++row) {
        std::vector<double> line;
        for (int64_t c = 0; c < cols; ++c) {
          const size_t i = static_cast<size_t>(row * cols + c);
          line.push_back(static_cast<float>(x[i] + (with_residual ? r[i] : 0.0f)));
          ASSERT_TRUE(g.sum_out == nullptr || sum[i] == x[i] + r[i]);
        }
        const Moments m = moments(line);
        const double inv = 1 / std::sqrt((rms ? m.square : m.variance) + 1e-5);
        ASSERT_NEAR(inverse[static_cast<size_t>(row)], inv, 1e-5 * inv);
        for (int64_t c = 0; c < cols; ++c) {
          const size_t k = static_cast<size_t>(c);
          double want = (line[k] - (rms ? 0 : m.mean)) * inv;
          if (with_scale) want *= s[k] + (rms ? 0.5 : 0.0);
          if (with_bias && !rms) want += b[k];
          // A single column has variance 0, so only eps limits the effect of the mean's rounding.
          ASSERT_NEAR(y[static_cast<size_t>(row * cols + c)], want, cols == 1 ? 2e-4 : 1e-5)
              << cols << " " << option;
        }
      }
      ASSERT_EQ(y.back(), -77.0f);
    }
  }
}

TEST_P(NormAtLevel, GroupInstanceAndAffine) {
  for (int64_t inner : {1, 7, 16, 49, 3000}) {
    for (int64_t groups : {1, 2, 6}) {
      const int64_t batch = 2, channels = 6;
      const std::vector<float> x = norm_values(batch * channels * inner, 1), s = norm_values(channels, 2),
                               b = norm_values(channels, 3);
      std::vector<float> y(x.size()), z(x.size());
      group_norm({x.data(), y.data(), batch, channels, inner, groups, s.data(), b.data()}, pool_);
      channel_affine({x.data(), z.data(), s.data(), b.data(), batch, channels, inner}, pool_);
      const int64_t span = channels / groups * inner;
      for (int64_t g = 0; g < batch * groups; ++g) {
        const std::vector<double> line(x.begin() + g * span, x.begin() + (g + 1) * span);
        const Moments m = moments(line);
        for (int64_t k = 0; k < span; ++k) {
          const size_t i = static_cast<size_t>(g * span + k);
          const size_t c = i / static_cast<size_t>(inner) % 6;
          const double want = (x[i] - m.mean) / std::sqrt(m.variance + 1e-5) * s[c] + b[c];
          ASSERT_NEAR(y[i], want, span == 1 ? 2e-3 : 2e-5) << inner << " " << groups;
          ASSERT_NEAR(z[i], static_cast<double>(x[i]) * s[c] + b[c], 1e-6);
        }
      }
    }
  }
  EXPECT_THROW(group_norm({nullptr, nullptr, 1, 6, 1, 4}, pool_), base::Error);
}

TEST_P(NormAtLevel, L2AndMeanPool) {
  for (int64_t cols : {1, 5, 16, 63, 64, 130}) {
    const int64_t rows = 6;
    std::vector<float> x = norm_values(rows * cols, 1);
    std::vector<float> y(x.size());
    l2_normalize_rows({x.data(), y.data(), rows, cols}, pool_);
    for (int64_t r = 0; r < rows; ++r) {
      double square = 0;
      for (int64_t c = 0; c < cols; ++c) square += std::pow(x[static_cast<size_t>(r * cols + c)], 2);
      for (int64_t c = 0; c < cols; ++c) {
        const size_t i = static_cast<size_t>(r * cols + c);
        ASSERT_NEAR(y[i], x[i] / std::sqrt(square), 1e-6);
      }
    }
    // [2, 3, cols]; the last token of image 0 is padding and holds NaN.
    for (int64_t c = 0; c < cols; ++c) x[static_cast<size_t>(2 * cols + c)] = NAN;
    const std::vector<float> mask = {1, 1, 0, 1, 1, 1};
    std::vector<float> pooled(static_cast<size_t>(2 * cols));
    mean_pool({x.data(), mask.data(), pooled.data(), 2, 3, cols}, pool_);
    for (int64_t c = 0; c < cols; ++c) {
      auto at = [&](int64_t row) { return static_cast<double>(x[static_cast<size_t>(row * cols + c)]); };
      ASSERT_NEAR(pooled[static_cast<size_t>(c)], (at(0) + at(1)) / 2, 1e-6);
      ASSERT_NEAR(pooled[static_cast<size_t>(cols + c)], (at(3) + at(4) + at(5)) / 3, 1e-6);
    }
    mean_pool({x.data() + 3 * cols, nullptr, pooled.data(), 1, 3, cols}, pool_);
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_NEAR(pooled[static_cast<size_t>(c)], pooled[static_cast<size_t>(cols + c)], 1e-6);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, NormAtLevel, testing::ValuesIn(simd_levels()),
                         [](const auto& level) { return level.param.name; });

TEST(Norm, FoldedBatchNormAndThreadCounts) {
  base::ThreadPool one(1), four(4);
  const std::vector<float> gamma = norm_values(5, 1), beta = norm_values(5, 2), mean = norm_values(5, 3),
                           variance = {1, 2, 0.5f, 3, 4};
  std::vector<float> scale(5), bias(5);
  fold_batch_norm({gamma.data(), beta.data(), mean.data(), variance.data()}, 5, scale.data(), bias.data());
  for (size_t c = 0; c < 5; ++c) {
    const double want = (1.7 - mean[c]) / std::sqrt(variance[c] + 1e-5) * gamma[c] + beta[c];
    EXPECT_NEAR(1.7 * scale[c] + bias[c], want, 1e-5);
  }
  const std::vector<float> x = norm_values(257 * 770, 5), s = norm_values(770, 6);
  std::vector<float> a(x.size()), b(x.size());
  LayerNorm g{x.data(), a.data(), 257, 770, s.data(), s.data()};
  layer_norm(g, one);
  g.y = b.data();
  layer_norm(g, four);
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * 4));
}

}  // namespace
}  // namespace trireme::cpu
