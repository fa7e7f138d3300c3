// Training batch norm: formulas in double, finite differences, means far from 0, teams, fused forms.
#include "ops/test_grad.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using testing::expect_gradient;

struct Layout {
  Dims dims;
  int64_t axis;
};

std::vector<Layout> layouts() {
  return {{{2, 3, 3, 5}, -1}, {{4, 5, 7, 19}, 3}, {{300, 33}, 1}, {{2, 3, 4, 5}, 1},   {{3, 4, 1}, 1},
          {{2, 7, 70}, 1},    {{1, 1, 1, 16}, 3}, {{9, 1}, -1},   {{40, 40, 2, 64}, 3}};
}

ir::Attrs attrs_of(const Layout& l, bool relu) {
  return {{"axis", l.axis}, {"epsilon", 1e-3}, {"activation", std::string(relu ? "relu" : "none")}};
}

int64_t channels_of(const Layout& l) { return l.dims[ir::normal_axis(l.axis, l.dims.size())]; }

/// The channel of each element.
std::vector<size_t> channel_of_each(const Layout& l) {
  std::vector<size_t> c;
  const size_t axis = ir::normal_axis(l.axis, l.dims.size());
  for (int64_t e = 0; e < tensor::element_count(l.dims); ++e) {
    int64_t rest = e, at = 0;
    for (size_t d = l.dims.size(); d-- > 0; rest /= l.dims[d]) at = d == axis ? rest % l.dims[d] : at;
    c.push_back(size_t(at));
  }
  return c;
}

struct ChannelMoments {
  std::vector<double> mean, variance, unbiased;
};

ChannelMoments channel_moments(const std::vector<double>& x, const Layout& l) {
  const std::vector<size_t> channel = channel_of_each(l);
  const size_t channels = size_t(channels_of(l));
  const double n = double(x.size() / channels);
  ChannelMoments m{std::vector<double>(channels), std::vector<double>(channels), {}};
  for (size_t i = 0; i < x.size(); ++i) m.mean[channel[i]] += x[i] / n;
  for (size_t i = 0; i < x.size(); ++i) m.variance[channel[i]] += std::pow(x[i] - m.mean[channel[i]], 2) / n;
  for (double v : m.variance) m.unbiased.push_back(v * n / std::max(1.0, n - 1));
  return m;
}

TEST(BatchNormTrain, EveryKernelMatchesTheFormula) {
  for (const Layout& l : layouts()) {
    const std::vector<size_t> channel = channel_of_each(l);
    const Tensor x = tests::random_tensor(l.dims, 1, 2.0f), scale = tests::random_tensor({channels_of(l)}, 2),
                 bias = tests::random_tensor({channels_of(l)}, 3), residual = tests::random_tensor(l.dims, 4);
    const std::vector<double> xs = x.to_doubles(), scales = scale.to_doubles(), biases = bias.to_doubles(),
                              residuals = residual.to_doubles();
    const ChannelMoments m = channel_moments(xs, l);
    for (int form = 0; form < 4; ++form) {
      const bool relu = form & 1, with_residual = form & 2;
      std::vector<double> want, inverse;
      for (size_t i = 0; i < channel.size(); ++i) {
        const size_t c = channel[i];
        double v = (xs[i] - m.mean[c]) / std::sqrt(m.variance[c] + 1e-3) * scales[c] + biases[c];
        if (with_residual) v += residuals[i];
        want.push_back(relu ? std::max(0.0, v) : v);
      }
      for (double v : m.variance) inverse.push_back(1 / std::sqrt(v + 1e-3));
      std::vector<Tensor> in{x, scale, bias};
      if (with_residual) in.push_back(residual);
      const auto results = tests::run_kernels("batch_norm_train", attrs_of(l, relu), in, 4);
      ASSERT_EQ(results.size(), 2u);
      for (const auto& r : results) {
        const std::string what = r.kernel + " " + tensor::to_string(l.dims);
        tests::expect_close(r.out[0], want, 1e-5, 2e-5, what);
        tests::expect_close(r.out[1], m.mean, 1e-6, 1e-6, what);
        tests::expect_close(r.out[2], inverse, 2e-6, 1e-6, what);
        tests::expect_close(r.out[3], m.unbiased, 2e-6, 1e-7, what);
      }
    }
  }
}

TEST(BatchNormTrain, GradientMatchesFiniteDifferences) {
  for (const Layout& l : {Layout{{2, 2, 3}, -1}, Layout{{2, 3, 2}, 1}, Layout{{5, 2}, 1}}) {
    const Tensor x = testing::random_tensor(DType::f64, l.dims, -2, 2, 1);
    const Tensor scale = testing::random_tensor(DType::f64, {channels_of(l)}, 0.5, 2, 2);
    const Tensor bias = testing::random_tensor(DType::f64, {channels_of(l)}, -1, 1, 3);
    const Tensor residual = testing::random_tensor(DType::f64, l.dims, -1, 1, 4);
    for (bool relu : {false, true}) {
      expect_gradient({.op = "batch_norm_train", .in = {x, scale, bias}, .attrs = attrs_of(l, relu)});
      expect_gradient(
          {.op = "batch_norm_train", .in = {x, scale, bias, residual}, .attrs = attrs_of(l, relu)});
    }
  }
}

/// The f32 kernel against the f64 kernel, which finite differences verify.
TEST(BatchNormGrad, VectorKernelMatchesDouble) {
  for (const Layout& l : layouts()) {
    const int64_t c = channels_of(l);
    const Tensor x = tests::random_tensor(l.dims, 1, 2.0f), dy = tests::random_tensor(l.dims, 5),
                 scale = tests::random_tensor({c}, 2), bias = tests::random_tensor({c}, 3),
                 residual = tests::random_tensor(l.dims, 4);
    for (int form = 0; form < 4; ++form) {
      const bool relu = form & 1, with_residual = form & 2;
      std::vector<Tensor> in{x, scale, bias};
      if (with_residual) in.push_back(residual);
      const auto saved = testing::run("batch_norm_train", in, attrs_of(l, relu), 4);
      std::vector<Tensor> back{dy, x, scale, bias, saved[1], saved[2]};
      if (relu && with_residual) back.push_back(saved[0]);
      if (relu && with_residual) back.push_back(tests::random_tensor(l.dims, 6));
      const size_t count = relu && with_residual ? 4 : 3;
      std::vector<Tensor> exact;
      for (const Tensor& t : back) exact.push_back(as_type(t, DType::f64));
      const auto want = testing::run("batch_norm_grad", exact, attrs_of(l, relu), count);
      const auto got = tests::run_kernels("batch_norm_grad", attrs_of(l, relu), back, count);
      ASSERT_EQ(got[0].kernel, "vector");
      for (size_t i = 0; i < count; ++i) {
        double largest = 0;
        for (double v : want[i].to_doubles()) largest = std::max(largest, std::abs(v));
        // The sum of thousands of elements that nearly cancel has the absolute error of its terms.
        const double absolute = (i == 1 || i == 2 ? 1e-4 : 1e-5) + 1e-6 * largest;
        tests::expect_close(got[0].out[i], want[i].to_doubles(), 1e-5, absolute,
                            tensor::to_string(l.dims) + " result " + std::to_string(i));
      }
    }
  }
}

TEST(BatchNormTrain, AFarMeanKeepsTheVariance) {
  for (const Layout& l : {Layout{{4, 30, 30, 17}, 3}, Layout{{4, 17, 30, 30}, 1}}) {
    Tensor x = tests::random_tensor(l.dims, 1);
    for (float& v : x.mutable_data<float>()) v += 1000.0f;
    x.mutable_data<float>()[0] = 990;
    const ChannelMoments m = channel_moments(x.to_doubles(), l);
    const Tensor one = Tensor::from<float>({17}, std::vector<float>(17, 1.0f));
    for (const auto& r : tests::run_kernels("batch_norm_train", attrs_of(l, false), {x, one, one}, 4)) {
      tests::expect_close(r.out[3], m.unbiased, 1e-5, 0, r.kernel);
      tests::expect_close(r.out[1], m.mean, 1e-7, 0, r.kernel);
    }
  }
}

TEST(BatchNormTrain, BitsDoNotDependOnTheTeam) {
  for (const Layout& l : {Layout{{37, 40, 2, 64}, 3}, Layout{{8, 24, 33, 31}, 1}}) {
    const Tensor x = tests::random_tensor(l.dims, 1), dy = tests::random_tensor(l.dims, 2),
                 scale = tests::random_tensor({channels_of(l)}, 3);
    const auto forward = [&](int threads) {
      return tests::run_kernels("batch_norm_train", attrs_of(l, true), {x, scale, scale, dy}, 4, {},
                                threads)[0]
          .out;
    };
    const auto one = forward(1);
    const auto backward = [&](int threads) {
      const std::vector<Tensor> in{dy, x, scale, scale, one[1], one[2], one[0]};
      return tests::run_kernels("batch_norm_grad", attrs_of(l, true), in, 4, {}, threads)[0].out;
    };
    const auto one_back = backward(1);
    for (int threads : {2, 3, 4}) {
      const auto many = forward(threads), many_back = backward(threads);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(many[i].same_as(one[i])) << threads << " " << i;
        EXPECT_TRUE(many_back[i].same_as(one_back[i])) << threads << " " << i;
      }
    }
  }
}

TEST(BatchNorm, GradientByGivenStatisticsReachesThemToo) {
  const Tensor x = testing::random_tensor(DType::f64, {2, 3, 4}, -2, 2, 1);
  const Tensor scale = testing::random_tensor(DType::f64, {3}, 0.5, 2, 2), bias = scale,
               mean = testing::random_tensor(DType::f64, {3}, -1, 1, 3), variance = scale;
  expect_gradient({.op = "batch_norm", .in = {x, scale, bias, mean, variance}});
}

}  // namespace
}  // namespace trireme::ops
