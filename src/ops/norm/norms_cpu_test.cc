// Normalisations and softmax: every kernel against the formulas in double, and fused ops against their
// expansion.
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using tests::random_tensor;

struct Moments {
  double mean, variance;
};

Moments moments(const std::vector<double>& x, size_t begin, size_t n) {
  double sum = 0, squares = 0;
  for (size_t i = begin; i < begin + n; ++i) sum += x[i];
  for (size_t i = begin; i < begin + n; ++i) squares += std::pow(x[i] - sum / double(n), 2);
  return {sum / double(n), squares / double(n)};
}

std::vector<double> naive_layer_norm(const std::vector<double>& x, size_t n, const Tensor& scale,
                                     const Tensor& bias) {
  std::vector<double> y;
  for (size_t row = 0; row < x.size() / n; ++row) {
    const Moments m = moments(x, row * n, n);
    for (size_t i = 0; i < n; ++i) {
      y.push_back((x[row * n + i] - m.mean) / std::sqrt(m.variance + 1e-5) * scale.to_doubles()[i] +
                  bias.to_doubles()[i]);
    }
  }
  return y;
}

TEST(LayerNorm, EveryKernelMatchesTheFormula) {
  for (const int64_t n : {1, 3, 16, 63, 384}) {
    const Tensor x = random_tensor({4, n}, 1), scale = random_tensor({n}, 2), bias = random_tensor({n}, 3);
    const auto results = tests::run_kernels("layer_norm", {}, {x, scale, bias}, 3);
    ASSERT_EQ(results.size(), 2u);
    const auto want = naive_layer_norm(x.to_doubles(), static_cast<size_t>(n), scale, bias);
    for (const auto& r : results) {
      tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
      for (size_t row = 0; row < 4; ++row) {
        const Moments m = moments(x.to_doubles(), row * size_t(n), size_t(n));
        EXPECT_NEAR(r.out[1].to_doubles()[row], m.mean, 1e-5) << r.kernel;
        EXPECT_NEAR(r.out[2].to_doubles()[row] * std::sqrt(m.variance + 1e-5), 1, 1e-4) << r.kernel;
      }
    }
  }
}

TEST(AddLayerNorm, KernelsAndExpansionAgree) {
  const Tensor x = random_tensor({2, 3, 50}, 1), r = random_tensor({2, 3, 50}, 2),
               scale = random_tensor({50}, 3), bias = random_tensor({50}, 4);
  std::vector<double> sum;
  for (size_t i = 0; i < 300; ++i) sum.push_back(x.to_doubles()[i] + r.to_doubles()[i]);
  const auto want = naive_layer_norm(sum, 50, scale, bias);
  const auto results = tests::run_kernels("add_layer_norm", {}, {x, r, scale, bias}, 2);
  ASSERT_EQ(results.size(), 2u);
  for (const auto& k : results) {
    tests::expect_close(k.out[0], want, 1e-4, 1e-5, k.kernel);
    tests::expect_close(k.out[1], sum, 1e-6, 1e-6, k.kernel);
  }
  tests::expect_close(tests::run_expanded("add_layer_norm", {}, {x, r, scale, bias}, 2)[0], want, 1e-4, 1e-5,
                      "expand");
}

TEST(RmsNorm, EveryKernelMatchesTheFormula) {
  const Tensor x = random_tensor({5, 77}, 1), scale = random_tensor({77}, 2);
  std::vector<double> want;
  for (size_t row = 0; row < 5; ++row) {
    double squares = 0;
    for (size_t i = 0; i < 77; ++i) squares += std::pow(x.to_doubles()[row * 77 + i], 2);
    for (size_t i = 0; i < 77; ++i)
      want.push_back(x.to_doubles()[row * 77 + i] / std::sqrt(squares / 77 + 1e-5) * scale.to_doubles()[i]);
  }
  for (const auto& r : tests::run_kernels("rms_norm", {}, {x, scale}))
    tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
}

TEST(GroupNorm, EveryKernelMatchesTheFormula) {
  const Tensor x = random_tensor({2, 6, 3, 5}, 1), scale = random_tensor({6}, 2),
               bias = random_tensor({6}, 3);
  std::vector<double> want;
  for (size_t i = 0; i < 180; ++i) {
    const Moments m = moments(x.to_doubles(), i / 45 * 45, 45);
    const size_t c = i / 15 % 6;
    want.push_back((x.to_doubles()[i] - m.mean) / std::sqrt(m.variance + 1e-5) * scale.to_doubles()[c] +
                   bias.to_doubles()[c]);
  }
  const auto results = tests::run_kernels("group_norm", {{"num_groups", int64_t{2}}}, {x, scale, bias});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-4, 1e-5, r.kernel);
}

/// The mean is subtracted from each element: 1 / sqrt(epsilon) would make much of what rounding leaves.
TEST(GroupNorm, EqualElementsGiveTheBias) {
  for (const float value : {50.3f, 1000.7f}) {
    const Tensor x = Tensor::from<float>({1, 2, 2}, {value, value, value, value}),
                 scale = Tensor::from<float>({2}, {1, 2}), bias = Tensor::from<float>({2}, {5, 6});
    const std::vector<double> want{5, 5, 6, 6};
    for (const auto& r : tests::run_kernels("instance_norm", {}, {x, scale, bias})) {
      if (r.kernel == "reference") {
        EXPECT_EQ(r.out[0].to_doubles(), want) << value;
      }
    }
    for (const auto& r : tests::run_kernels("group_norm", {{"num_groups", int64_t{1}}}, {x, scale, bias})) {
      if (r.kernel == "reference") {
        EXPECT_EQ(r.out[0].to_doubles(), want) << value;
      }
    }
  }
}

TEST(GroupNorm, ChannelsLastMatchesChannelsFirst) {
  std::mt19937 random(3);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t groups = draw(1, 5), channels = groups * draw(1, 30), points = draw(1, 400),
                  batch = draw(1, 3);
    const Tensor x = random_tensor({batch, points, channels}, 1), scale = random_tensor({channels}, 2),
                 bias = random_tensor({channels}, 3);
    const auto xv = x.to_doubles(), s = scale.to_doubles(), b = bias.to_doubles();
    std::vector<double> want(xv.size());
    const int64_t each = channels / groups;
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t g = 0; g < groups; ++g) {
        const auto at = [&](int64_t p, int64_t c) {
          return static_cast<size_t>((n * points + p) * channels + g * each + c);
        };
        double sum = 0, squares = 0;
        const double count = static_cast<double>(points * each);
        for (int64_t p = 0; p < points; ++p)
          for (int64_t c = 0; c < each; ++c) sum += xv[at(p, c)];
        for (int64_t p = 0; p < points; ++p)
          for (int64_t c = 0; c < each; ++c) squares += std::pow(xv[at(p, c)] - sum / count, 2);
        for (int64_t p = 0; p < points; ++p) {
          for (int64_t c = 0; c < each; ++c) {
            const size_t k = static_cast<size_t>(g * each + c);
            want[at(p, c)] = (xv[at(p, c)] - sum / count) / std::sqrt(squares / count + 1e-5) * s[k] + b[k];
          }
        }
      }
    }
    const ir::Attrs attrs{{"num_groups", groups}};
    const auto team = tests::run_kernels("group_norm_nhwc", attrs, {x, scale, bias}, 1, {0}, 3);
    const auto alone = tests::run_kernels("group_norm_nhwc", attrs, {x, scale, bias}, 1, {0}, 1);
    ASSERT_GE(team.size(), 1u);
    for (size_t k = 0; k < team.size(); ++k) {
      tests::expect_close(team[k].out[0], want, 1e-4, 2e-5, team[k].kernel);
      EXPECT_TRUE(team[k].out[0].same_as(alone[k].out[0]));
    }
    tests::expect_close(tests::run_expanded("group_norm_nhwc", attrs, {x, scale, bias})[0], want, 1e-4, 2e-5,
                        "expanded");
  }
}

TEST(BatchNorm, FoldedAndReferenceMatchTheFormula) {
  const Tensor x = random_tensor({2, 3, 7}, 1), scale = random_tensor({3}, 2), bias = random_tensor({3}, 3),
               mean = random_tensor({3}, 4);
  const Tensor var = Tensor::from<float>({3}, {0.5f, 2.0f, 1.0f});
  std::vector<double> want;
  for (size_t i = 0; i < 42; ++i) {
    const size_t c = i / 7 % 3;
    want.push_back((x.to_doubles()[i] - mean.to_doubles()[c]) / std::sqrt(var.to_doubles()[c] + 1e-5) *
                       scale.to_doubles()[c] +
                   bias.to_doubles()[c]);
  }
  const auto results = tests::run_kernels("batch_norm", {}, {x, scale, bias, mean, var});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-5, r.kernel);
}

TEST(Softmax, EveryAxisSumsToOneAndMatchesTheFormula) {
  const Tensor x = random_tensor({3, 20, 4}, 1, 5.0f);
  for (const int64_t axis : {0, 1, 2}) {
    const size_t step = axis == 0 ? 80 : axis == 1 ? 4 : 1, n = axis == 0 ? 3 : axis == 1 ? 20 : 4;
    std::vector<double> want;
    for (size_t i = 0; i < 240; ++i) {
      const size_t first = i - i / step % n * step;
      double sum = 0;
      for (size_t k = 0; k < n; ++k) sum += std::exp(x.to_doubles()[first + k * step]);
      want.push_back(std::exp(x.to_doubles()[i]) / sum);
    }
    const auto results = tests::run_kernels("softmax", {{"axis", axis}}, {x});
    ASSERT_EQ(results.size(), 2u);
    for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-7, r.kernel);
    std::vector<double> logs;
    for (double v : want) logs.push_back(std::log(v));
    for (const auto& r : tests::run_kernels("log_softmax", {{"axis", axis}}, {x}))
      tests::expect_close(r.out[0], logs, 1e-5, 1e-5, r.kernel);
  }
}

TEST(MaskedMeanPool, IgnoresMaskedTokens) {
  const Tensor x = random_tensor({2, 4, 9}, 1),
               mask = Tensor::from<int64_t>({2, 4}, {1, 1, 0, 0, 1, 1, 1, 0});
  std::vector<double> want;
  for (size_t b = 0; b < 2; ++b) {
    for (size_t j = 0; j < 9; ++j) {
      double sum = 0;
      for (size_t t = 0; t < 2 + b; ++t) sum += x.to_doubles()[(b * 4 + t) * 9 + j];
      want.push_back(sum / double(2 + b));
    }
  }
  const auto results = tests::run_kernels("masked_mean_pool", {}, {x, mask});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-5, 1e-6, r.kernel);
  tests::expect_close(tests::run_expanded("masked_mean_pool", {}, {x, mask})[0], want, 1e-5, 1e-6, "expand");
}

TEST(L2Normalize, RowsHaveUnitLength) {
  const Tensor x = random_tensor({6, 33}, 1);
  std::vector<double> want;
  for (size_t row = 0; row < 6; ++row) {
    double squares = 0;
    for (size_t i = 0; i < 33; ++i) squares += std::pow(x.to_doubles()[row * 33 + i], 2);
    for (size_t i = 0; i < 33; ++i) want.push_back(x.to_doubles()[row * 33 + i] / std::sqrt(squares));
  }
  for (const auto& r : tests::run_kernels("l2_normalize", {}, {x}))
    tests::expect_close(r.out[0], want, 1e-5, 1e-6, r.kernel);
  tests::expect_close(tests::run_expanded("l2_normalize", {}, {x})[0], want, 1e-5, 1e-6, "expand");
}

}  // namespace
}  // namespace trireme::ops
