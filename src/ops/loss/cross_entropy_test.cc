// cross_entropy and its gradient: formulas in double, finite differences, ignored and invalid targets, teams.
#include "ops/test_grad.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::expect_gradient;

struct Wanted {
  double loss = 0, count = 0, correct = 0;
  std::vector<double> log_sums, gradient;
};

struct Terms {
  int64_t ignored = -100;
  double smooth = 0, z = 0, dloss = 1;
};

/// Computes the loss from probabilities: -sum q log p, where q is the target distribution.
Wanted by_definition(const std::vector<double>& x, size_t classes, const std::vector<int64_t>& target,
                     const Terms& t) {
  Wanted w;
  for (size_t row = 0; row < target.size(); ++row) {
    const double* at = x.data() + row * classes;
    double top = at[0], exps = 0;
    size_t best = 0;
    for (size_t c = 0; c < classes; ++c) {
      if (at[c] > top) top = at[c], best = c;
    }
    for (size_t c = 0; c < classes; ++c) exps += std::exp(at[c] - top);
    const double lse = top + std::log(exps);
    const bool counts = target[row] != t.ignored;
    w.log_sums.push_back(counts ? lse : 0);
    for (size_t c = 0; c < classes; ++c) {
      const double share = t.smooth / double(classes);
      const double q = share + (int64_t(c) == target[row] ? 1 - t.smooth : 0), log_p = at[c] - lse;
      if (counts) w.loss -= q * log_p;
      w.gradient.push_back(counts ? t.dloss * ((1 + 2 * t.z * lse) * std::exp(log_p) - q) : 0);
    }
    if (!counts) continue;
    w.loss += t.z * lse * lse;
    w.count += 1;
    w.correct += int64_t(best) == target[row] ? 1 : 0;
  }
  return w;
}

ir::Attrs attrs_of(const Terms& t) {
  return {{"ignore_index", t.ignored}, {"label_smoothing", t.smooth}, {"z_loss", t.z}};
}

std::vector<int64_t> target_list(size_t rows, size_t classes, int64_t ignored) {
  std::vector<int64_t> t;
  for (size_t i = 0; i < rows; ++i) t.push_back(i % 3 == 1 ? ignored : int64_t(i * 7 % classes));
  return t;
}

TEST(CrossEntropy, EveryKernelMatchesTheFormula) {
  for (const size_t classes : {1u, 2u, 10u, 63u, 64u, 1000u, 2500u}) {
    for (const Terms& t : {Terms{}, Terms{-1, 0.1, 0, 0.25}, Terms{3, 0.3, 1e-3, -2}}) {
      const size_t rows = 7;
      const Tensor x = tests::random_tensor({7, int64_t(classes)}, 5, 4.0f);
      const std::vector<int64_t> target = target_list(rows, classes, t.ignored);
      const Wanted want = by_definition(x.to_doubles(), classes, target, t);
      const Tensor ids = testing::ints(target);
      const auto results = tests::run_kernels("cross_entropy", attrs_of(t), {x, ids}, 4);
      ASSERT_EQ(results.size(), 2u);
      for (const auto& r : results) {
        tests::expect_close(r.out[0], {want.loss}, 1e-6, 1e-6, r.kernel);
        tests::expect_close(r.out[1], want.log_sums, 1e-6, 1e-6, r.kernel);
        tests::expect_close(r.out[2], {want.count}, 0, 0, r.kernel);
        tests::expect_close(r.out[3], {want.correct}, 0, 0, r.kernel);
        const Tensor up = Tensor::scalar(float(t.dloss));
        for (const auto& g : tests::run_kernels("cross_entropy_grad", attrs_of(t), {x, ids, r.out[1], up}))
          tests::expect_close(g.out[0], want.gradient, 2e-6, 1e-6, g.kernel);
      }
    }
  }
}

TEST(CrossEntropy, PaddedScoresCountNowhere) {
  // Scores [4, 5], and the same with three more columns of large numbers.
  const std::vector<float> values = [] {
    std::vector<float> v;
    for (int i = 0; i < 20; ++i) v.push_back(0.3f * static_cast<float>(i * 7 % 11) - 1);
    return v;
  }();
  std::vector<float> wide;
  for (size_t i = 0; i < values.size(); ++i) {
    wide.push_back(values[i]);
    if (i % 5 == 4) wide.insert(wide.end(), 3, 50.0f);
  }
  const Tensor x = Tensor::from<float>({4, 5}, std::span<const float>(values));
  const Tensor padded = Tensor::from<float>({4, 8}, std::span<const float>(wide));
  const Tensor target = Tensor::from<int64_t>({4}, {0, 4, -100, 2}), up = Tensor::scalar(0.5f);
  base::ThreadPool pool(1);
  for (const double smooth : {0.0, 0.1}) {
    ir::Attrs attrs{{"label_smoothing", smooth}, {"z_loss", 0.01}};
    const auto want = evaluate(table().need("cross_entropy"), attrs, {x, target}, 4, pool);
    const Tensor dx =
        evaluate(table().need("cross_entropy_grad"), attrs, {x, target, want[1], up}, 1, pool)[0];
    attrs.set("padded", int64_t{3});
    const auto got = evaluate(table().need("cross_entropy"), attrs, {padded, target}, 4, pool);
    for (size_t i = 0; i < 4; ++i) {
      for (size_t j = 0; j < got[i].to_doubles().size(); ++j)
        EXPECT_NEAR(got[i].to_doubles()[j], want[i].to_doubles()[j], 1e-5) << i;
    }
    const std::vector<double> wide_dx =
        evaluate(table().need("cross_entropy_grad"), attrs, {padded, target, want[1], up}, 1, pool)[0]
            .to_doubles();
    for (size_t row = 0; row < 4; ++row) {
      for (size_t c = 0; c < 8; ++c) {
        const double own = c < 5 ? dx.to_doubles()[row * 5 + c] : 0;
        EXPECT_NEAR(wide_dx[row * 8 + c], own, 1e-6) << row << " " << c;
      }
    }
  }
  const ir::Attrs none{{"padded", int64_t{5}}};
  EXPECT_THROW(evaluate(table().need("cross_entropy"), none, {x, target}, 1, pool), base::Error);
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  const Tensor x = testing::random_tensor(DType::f64, {2, 3, 5}, -2, 2, 3);
  const Tensor target = Tensor::from<int32_t>({2, 3}, std::vector<int32_t>{0, 4, -100, 2, 2, 1});
  for (const Terms& t : {Terms{}, Terms{-100, 0.1, 0}, Terms{2, 0.2, 0.01}}) {
    ir::Attrs attrs = attrs_of(t);
    const Tensor ids =
        t.ignored == -100 ? target : Tensor::from<int32_t>({2, 3}, std::vector<int32_t>{0, 4, 2, 2, 2, 1});
    expect_gradient({.op = "cross_entropy", .in = {x, ids}, .attrs = attrs, .results = 1});
    expect_gradient({.op = "cross_entropy", .in = {x, ids}, .attrs = attrs, .results = 4});
  }
}

TEST(CrossEntropy, ATieIsCorrectForTheFirstOnly) {
  const Tensor x = Tensor::zeros(DType::f32, {3, 40});
  for (const auto& r : tests::run_kernels("cross_entropy", {}, {x, testing::ints({0, 1, 39})}, 4))
    EXPECT_EQ(r.out[3].to_doubles()[0], 1) << r.kernel;
}

TEST(CrossEntropy, ExtremeScoresStayFinite) {
  Tensor x = Tensor::zeros(DType::f32, {2, 2100});
  for (float& v : x.mutable_data<float>()) v = -std::numeric_limits<float>::infinity();
  x.mutable_data<float>()[5] = 3e4f;
  x.mutable_data<float>()[2000] = 3e4f;
  x.mutable_data<float>()[2100 + 2099] = -1e30f;
  for (const auto& r : tests::run_kernels("cross_entropy", {}, {x, testing::ints({2000, 2099})}, 2)) {
    EXPECT_NEAR(r.out[0].to_doubles()[0], std::log(2.0), 1e-6) << r.kernel;
    EXPECT_FLOAT_EQ(r.out[1].data<float>()[1], -1e30f) << r.kernel;
  }
}

TEST(CrossEntropy, ANanScoreGivesANanLoss) {
  for (const int64_t where : {3, 1500}) {
    Tensor x = Tensor::zeros(DType::f32, {1, 2000});
    x.mutable_data<float>()[static_cast<size_t>(where)] = std::nanf("");
    const auto results = tests::run_kernels("cross_entropy", {}, {x, testing::ints({7})}, 2);
    EXPECT_TRUE(std::isnan(results[0].out[0].to_doubles()[0]));
  }
}

TEST(CrossEntropy, NoValidRowGivesZeroes) {
  const Tensor x = tests::random_tensor({2, 9}, 1);
  for (const auto& r : tests::run_kernels("cross_entropy", {}, {x, testing::ints({-100, -100})}, 4)) {
    for (size_t i : {0, 2, 3}) EXPECT_EQ(r.out[i].to_doubles()[0], 0) << r.kernel;
  }
  const auto none =
      testing::run("cross_entropy", {Tensor::zeros(DType::f32, {0, 9}), testing::ints({})}, {}, 4);
  EXPECT_EQ(none[0].to_doubles()[0], 0);
}

TEST(CrossEntropy, AWrongTargetIsNamed) {
  const Tensor x = tests::random_tensor({2, 9}, 1);
  try {
    testing::run("cross_entropy", {x, testing::ints({3, 9})}, {}, 4);
    FAIL() << "target 9 of 9 classes was accepted";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    EXPECT_NE(std::string(e.what()).find(": 9"), std::string::npos) << e.what();
  }
}

TEST(CrossEntropy, BitsDoNotDependOnTheTeam) {
  const Tensor x = tests::random_tensor({257, 1300}, 9, 3.0f);
  const Tensor ids = testing::ints(target_list(257, 1300, -100));
  const auto one = tests::run_kernels("cross_entropy", {}, {x, ids}, 4, {}, 1);
  for (int threads : {2, 3, 4}) {
    const auto many = tests::run_kernels("cross_entropy", {}, {x, ids}, 4, {}, threads);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(one[0].out[i].same_as(many[0].out[i])) << threads;
  }
}

TEST(CrossEntropy, HalfPrecisionScoresGiveF32Sums) {
  const Tensor x = testing::random_tensor(DType::bf16, {4, 33}, -3, 3);
  const Tensor ids = testing::ints({0, 32, 5, 7});
  const Wanted want = by_definition(x.to_doubles(), 33, {0, 32, 5, 7}, {});
  const auto out = testing::run("cross_entropy", {x, ids}, {}, 4);
  EXPECT_EQ(out[0].dtype(), DType::f32);
  tests::expect_close(out[0], {want.loss}, 1e-6, 1e-6, "bf16");
}

}  // namespace
}  // namespace trireme::ops
