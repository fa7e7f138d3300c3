// Random numbers on the device against the CPU's: the same masks and numbers.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

TEST(RandomCuda, DropoutDrawsTheCpusMask) {
  for (const int64_t width : {0, 1, 63, 200, 1000}) {
    for (const int64_t row : {int64_t{0}, int64_t{5}, (int64_t{1} << 37) + 3}) {
      const Tensor x = tests::random_tensor({3, width}, 1), rng = testing::ints({11, 7, row});
      tests::expect_as_cpu({.op = "dropout_train",
                            .in = {x, rng},
                            .attrs = {{"ratio", 0.25}, {"op", int64_t{2}}},
                            .relative = 1e-6,
                            .absolute = 0});
    }
  }
}

TEST(RandomCuda, DropoutOfAPartDrawsTheWholesMask) {
  const Tensor rng = testing::ints({3, 1, 2});
  const ir::Attrs attrs{{"ratio", 0.5},
                        {"op", int64_t{9}},
                        {"dims", Ints{4, 6, 10}},
                        {"begin", Ints{0, 3, 5}},
                        {"rows", int64_t{4}}};
  tests::expect_as_cpu({.op = "dropout_train",
                        .in = {tests::random_tensor({4, 3, 5}, 2), rng},
                        .attrs = attrs,
                        .relative = 1e-6,
                        .absolute = 0});
}

TEST(RandomCuda, DropoutOfOneColumnOrRowDrawsTheWholesMask) {
  struct Part {
    Ints whole, part, begin;
  };
  for (const Part& c : {Part{{40, 2}, {40, 1}, {0, 1}}, Part{{3, 40, 5}, {1, 40, 1}, {2, 0, 3}},
                        Part{{4, 50}, {1, 50}, {3, 0}}, Part{{4, 50}, {1, 1}, {2, 7}}}) {
    tests::expect_as_cpu({.op = "dropout_train",
                          .in = {tests::random_tensor(c.part, 2), testing::ints({3, 1, 2})},
                          .attrs = {{"ratio", 0.5}, {"dims", c.whole}, {"begin", c.begin}},
                          .relative = 1e-6,
                          .absolute = 0});
  }
}

TEST(RandomCuda, DropoutOfRowsThatDoNotDivideTheElements) {
  tests::expect_as_cpu({.op = "dropout_train",
                        .in = {tests::random_tensor({5, 3}, 2), testing::ints({3, 1, 8})},
                        .attrs = {{"ratio", 0.5}, {"rows", int64_t{4}}},
                        .relative = 1e-6,
                        .absolute = 0});
}

TEST(RandomCuda, NumbersOfTheSeed) {
  for (const int64_t dtype : {1, 10, 11}) {
    const ir::Attrs attrs{{"shape", Ints{7, 33}}, {"seed", 2.5}, {"dtype", dtype}};
    tests::expect_as_cpu({.op = "random_uniform", .in = {}, .attrs = attrs});
    tests::expect_as_cpu({.op = "random_normal", .in = {}, .attrs = attrs});
  }
  const Tensor p = testing::random_tensor(DType::f32, {5, 20}, 0, 1);
  tests::expect_as_cpu({.op = "bernoulli", .in = {p}, .attrs = {{"seed", 1.0}}});
}

}  // namespace
}  // namespace trireme::ops
