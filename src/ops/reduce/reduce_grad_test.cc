// Gradients of reductions, scans and softmax against finite differences; the fused kernels against double.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

TEST(ReduceGrad, ReductionsMatchDifferences) {
  for (const char* name :
       {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1", "reduce_l2",
        "reduce_log_sum", "reduce_log_sum_exp", "reduce_sum_square"}) {
    const Tensor x = random_tensor(DType::f64, {3, 4, 5}, 0.3, 1.5);
    for (int64_t keeps : {0, 1}) {
      const ir::Attrs attrs{{"keepdims", keeps}};
      for (const std::vector<int64_t>& axes :
           {std::vector<int64_t>{-1}, {0}, {1}, {0, 2}, {-2, -1}, {0, 1, 2}}) {
        expect_gradient({.op = name, .in = {x, ints(axes)}, .attrs = attrs});
      }
      expect_gradient({.op = name, .in = {x}, .attrs = attrs});
    }
    expect_gradient({.op = name, .in = {random_tensor(DType::f64, {1, 7}, 0.3, 1.5), ints({0})}});
    expect_gradient({.op = name,
                     .in = {random_tensor(DType::f64, {2, 3}, 0.3, 1.5)},
                     .attrs = {{"noop_with_empty_axes", int64_t{1}}}});
  }
}

TEST(ReduceGrad, NegativeValuesAndZeros) {
  const Tensor x = random_tensor(DType::f64, {4, 6}, -1, 1);
  for (const char* name : {"reduce_sum", "reduce_max", "reduce_l1", "reduce_l2", "reduce_log_sum_exp"}) {
    expect_gradient({.op = name, .in = {x, ints({1})}});
  }
  const Tensor zeros = Tensor::from<double>({2, 3}, std::vector<double>{0, 2, 3, 0, 0, 4});
  expect_gradient({.op = "reduce_prod", .in = {zeros, ints({1})}});
  expect_gradient({.op = "cum_prod", .in = {zeros, ints({1})}});
}

TEST(ReduceGrad, Scans) {
  const Tensor x = random_tensor(DType::f64, {3, 4, 2}, -1.5, 1.5);
  for (const char* name : {"cum_sum", "cum_prod"}) {
    for (int64_t axis : {0, 1, -1}) {
      for (int64_t exclusive : {0, 1}) {
        for (int64_t reverse : {0, 1}) {
          expect_gradient({.op = name,
                           .in = {x, ints({axis})},
                           .attrs = {{"exclusive", exclusive}, {"reverse", reverse}}});
        }
      }
    }
  }
}

TEST(SoftmaxGrad, MatchesDifferences) {
  for (const char* name : {"softmax", "log_softmax"}) {
    for (int64_t axis : {0, 1, -1}) {
      expect_gradient(
          {.op = name, .in = {random_tensor(DType::f64, {3, 4, 5}, -2, 2)}, .attrs = {{"axis", axis}}});
    }
    expect_gradient({.op = name, .in = {random_tensor(DType::f64, {7}, -2, 2)}});
  }
}

TEST(SoftmaxGrad, KernelsAgreeWithDouble) {
  for (const char* name : {"softmax_grad", "log_softmax_grad"}) {
    for (const tensor::Dims& dims : {tensor::Dims{5, 33}, {2, 33, 7}, {3, 9, 40}, {1, 1, 1}, {4, 1500}}) {
      for (int64_t axis = 0; axis < static_cast<int64_t>(dims.size()); ++axis) {
        const ir::Attrs attrs{{"axis", axis}};
        const Tensor dy = random_tensor(DType::f32, dims, -1, 1),
                     x = random_tensor(DType::f32, dims, -2, 2, 3);
        const Tensor y = run(name == std::string("softmax_grad") ? "softmax" : "log_softmax", {x}, attrs)[0];
        const ir::Attrs to{{"to", int64_t{11}}};
        const std::vector<double> want =
            run(name, {run("cast", {dy}, to)[0], run("cast", {y}, to)[0]}, attrs)[0].to_doubles();
        const std::vector<double> got = run(name, {dy, y}, attrs)[0].to_doubles();
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got[i], want[i], 1e-5) << name << " axis " << axis;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
