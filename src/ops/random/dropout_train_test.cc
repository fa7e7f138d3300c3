// dropout_train: the draws, their frequencies, micro-batches, teams, the adjoint.
#include "ops/test_grad.h"
#include "tests/cut_trial.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

Tensor ones(const tensor::Dims& dims) {
  Tensor t = Tensor::empty(DType::f32, dims);
  for (float& v : t.mutable_data<float>()) v = 1;
  return t;
}

ir::Attrs attrs(double ratio, int64_t op = 0) { return {{"ratio", ratio}, {"op", op}}; }

TEST(DropoutTrain, EveryKernelFollowsTheCounter) {
  // Sizes around 64, the number of elements that share 16 blocks; first rows that begin within such a group.
  for (const int64_t width : {1, 3, 64, 67, 200, 1000}) {
    for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{5}, (int64_t{1} << 37) + 3}) {
      const Tensor x = tests::random_tensor({3, width}, 1), rng = testing::ints({11, 7, first});
      std::vector<double> want;
      for (int64_t i = 0; i < 3 * width; ++i) {
        const uint64_t e = uint64_t(first * width + i);
        const uint64_t stream = (uint64_t{1} << 63) + (uint64_t{2} << 32) + 7;
        const auto words = base::philox_block(11, stream, e / 64 * 16 + e % 16);
        const bool kept = double(words[e / 16 % 4]) >= 0.25 * 4294967296.0;
        want.push_back(kept ? x.to_doubles()[size_t(i)] / 0.75 : 0);
      }
      const auto results = tests::run_kernels("dropout_train", attrs(0.25, 2), {x, rng});
      ASSERT_EQ(results.size(), 2u);
      for (const auto& r : results) tests::expect_close(r.out[0], want, 1e-6, 0, r.kernel);
    }
  }
}

TEST(DropoutTrain, KeepsTheRightShareAndTheMean) {
  const int64_t n = 1 << 20;
  for (double ratio : {0.0, 0.1, 0.5, 0.9}) {
    const Tensor y =
        testing::run("dropout_train", {ones({16, n / 16}), testing::ints({1, 2, 3})}, attrs(ratio))[0];
    double kept = 0, sum = 0;
    for (float v : y.data<float>()) kept += v != 0 ? 1 : 0, sum += double(v);
    const double deviation = std::sqrt(double(n) * ratio * (1 - ratio));
    EXPECT_NEAR(kept, double(n) * (1 - ratio), 5 * deviation);
    EXPECT_NEAR(sum / double(n), 1, 5 * deviation / double(n) / (1 - ratio) + 1e-6);
  }
}

TEST(DropoutTrain, SeedStepAndOpEachChangeTheMask) {
  const auto mask = [](int64_t seed, int64_t step, int64_t op) {
    return testing::run("dropout_train", {ones({4, 99}), testing::ints({seed, step, 0})}, attrs(0.5, op))[0];
  };
  const Tensor base = mask(1, 1, 1);
  EXPECT_TRUE(base.same_as(mask(1, 1, 1)));
  for (const Tensor& other : {mask(2, 1, 1), mask(1, 2, 1), mask(1, 1, 2), mask(1, 1, 0)}) {
    double equal = 0;
    for (size_t i = 0; i < 396; ++i) equal += base.data<float>()[i] == other.data<float>()[i] ? 1 : 0;
    EXPECT_LT(std::abs(equal - 198), 60);  // six standard deviations
  }
}

TEST(DropoutTrain, MicroBatchesSeeTheMaskOfTheWholeBatch) {
  const Tensor x = tests::random_tensor({12, 5, 7}, 3);
  const Tensor whole = testing::run("dropout_train", {x, testing::ints({9, 4, 24})}, attrs(0.3))[0];
  for (const int64_t rows : {1, 2, 3, 4, 6}) {
    for (int64_t at = 0; at < 12; at += rows) {
      const auto part = x.data<float>().subspan(size_t(at) * 35, size_t(rows) * 35);
      const Tensor y = testing::run("dropout_train",
                                    {Tensor::from<float>({rows, 5, 7}, part), testing::ints({9, 4, 24 + at})},
                                    attrs(0.3))[0];
      const auto want = whole.data<float>().subspan(size_t(at) * 35, size_t(rows) * 35);
      EXPECT_TRUE(y.same_as(Tensor::from<float>({rows, 5, 7}, want))) << rows << " " << at;
    }
  }
}

TEST(DropoutTrain, RowsMayBeFolded) {
  // [batch * tokens, width] with `rows` = batch gives the draws of [batch, tokens, width].
  const Tensor x = tests::random_tensor({6, 5, 7}, 3), flat = Tensor::from<float>({30, 7}, x.data<float>());
  ir::Attrs folded = attrs(0.4);
  folded.set("rows", int64_t{6});
  const Tensor rng = testing::ints({1, 1, 6});
  const Tensor a = testing::run("dropout_train", {x, rng}, attrs(0.4))[0];
  const Tensor b = testing::run("dropout_train", {flat, rng}, folded)[0];
  EXPECT_TRUE(b.same_as(Tensor::from<float>({30, 7}, a.data<float>())));
}

TEST(DropoutTrain, BitsDoNotDependOnTheTeam) {
  const Tensor x = tests::random_tensor({257, 1001}, 1), rng = testing::ints({1, 2, 3});
  const auto one = tests::run_kernels("dropout_train", attrs(0.1), {x, rng}, 1, {}, 1);
  for (int threads : {2, 3, 4}) {
    const auto many = tests::run_kernels("dropout_train", attrs(0.1), {x, rng}, 1, {}, threads);
    EXPECT_TRUE(many[0].out[0].same_as(one[0].out[0])) << threads;
  }
}

TEST(DropoutTrain, GradientMatchesFiniteDifferences) {
  const Tensor x = testing::random_tensor(DType::f64, {3, 4, 5}, -2, 2);
  testing::expect_gradient(
      {.op = "dropout_train", .in = {x, testing::ints({1, 2, 3})}, .attrs = attrs(0.4, 3)});
}

TEST(DropoutTrain, APartDrawsTheWholesMask) {
  const Tensor x = testing::random_tensor(DType::f64, {3, 5, 140}, 1, 2), rng = testing::ints({11, 7, 2});
  for (int parts : {2, 3, 4})
    EXPECT_EQ(
        tests::expect_cuts({.op = "dropout_train", .in = {x, rng}, .attrs = attrs(0.4, 2), .parts = parts}),
        "abc");
  // A cut of two axes at once, bit for bit: columns [70, 140) of positions [2, 5).
  const Tensor f = testing::random_tensor(DType::f32, {3, 5, 140}, 1, 2);
  ir::Attrs of_part = attrs(0.4, 2);
  of_part.set("dims", std::vector<int64_t>{3, 5, 140}).set("begin", std::vector<int64_t>{0, 2, 70});
  for (const char* kernel : {"vector", "reference"}) {
    const Tensor whole = testing::run_kernel("dropout_train", kernel, {f, rng}, attrs(0.4, 2));
    Tensor part = Tensor::empty(DType::f32, {3, 3, 70}), want = Tensor::empty(DType::f32, {3, 3, 70});
    for (size_t i = 0; i < 630; ++i) {
      const size_t at = (i / 210 * 5 + 2 + i / 70 % 3) * 140 + 70 + i % 70;
      part.mutable_data<float>()[i] = f.data<float>()[at];
      want.mutable_data<float>()[i] = whole.data<float>()[at];
    }
    EXPECT_TRUE(testing::run_kernel("dropout_train", kernel, {part, rng}, of_part).same_as(want)) << kernel;
  }
}

}  // namespace
}  // namespace trireme::ops
