// Gradients of the normalisations: finite differences in double, f32 kernels against the double ones, teams.
#include "ops/test_grad.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using testing::expect_gradient;

Tensor wide_values(const Dims& dims, uint64_t seed) {
  return testing::random_tensor(DType::f64, dims, -2, 2, seed);
}

TEST(NormGradients, LayerNorm) {
  for (const auto& [x, scale, axis] : std::vector<std::tuple<Dims, Dims, int64_t>>{
           {{3, 7}, {7}, -1}, {{2, 3, 4}, {3, 4}, 1}, {{2, 3, 4}, {4}, 1}, {{2, 3, 4}, {3, 1}, -2}}) {
    const ir::Attrs attrs{{"axis", axis}, {"epsilon", 1e-3}};
    expect_gradient({.op = "layer_norm", .in = {wide_values(x, 1), wide_values(scale, 2)}, .attrs = attrs});
    expect_gradient({.op = "layer_norm",
                     .in = {wide_values(x, 1), wide_values(scale, 2), wide_values(scale, 3)},
                     .attrs = attrs});
    expect_gradient({.op = "rms_norm", .in = {wide_values(x, 1), wide_values(scale, 2)}, .attrs = attrs});
  }
}

TEST(NormGradients, AddLayerNorm) {
  const Tensor x = wide_values({2, 3, 6}, 1), residual = wide_values({2, 3, 6}, 2),
               scale = wide_values({6}, 3);
  for (size_t results : {1, 2}) {
    expect_gradient({.op = "add_layer_norm", .in = {x, residual, scale}, .results = results});
    expect_gradient(
        {.op = "add_layer_norm", .in = {x, residual, scale, wide_values({6}, 4)}, .results = results});
  }
}

TEST(NormGradients, GroupsAndInstances) {
  const Tensor x = wide_values({2, 6, 5}, 1), scale = wide_values({6}, 2), bias = wide_values({6}, 3);
  for (int64_t groups : {1, 2, 3, 6}) {
    expect_gradient(
        {.op = "group_norm", .in = {x, scale, bias}, .attrs = {{"num_groups", groups}, {"epsilon", 1e-3}}});
    expect_gradient({.op = "group_norm_nhwc",
                     .in = {wide_values({2, 5, 6}, 1), scale, bias},
                     .attrs = {{"num_groups", groups}, {"epsilon", 1e-3}}});
  }
  expect_gradient({.op = "instance_norm", .in = {x, scale, bias}, .attrs = {{"epsilon", 1e-3}}});
}

TEST(NormGradients, LpNorm) {
  for (int64_t axis : {0, 1, -1}) {
    for (int64_t p : {1, 2}) {
      expect_gradient(
          {.op = "lp_norm", .in = {wide_values({3, 4, 5}, 1)}, .attrs = {{"axis", axis}, {"p", p}}});
    }
  }
  expect_gradient({.op = "l2_normalize", .in = {wide_values({4, 5}, 1)}});
  // If the norm is below epsilon, the divisor is constant.
  expect_gradient({.op = "l2_normalize", .in = {wide_values({4, 5}, 1)}, .attrs = {{"epsilon", 100.0}}});
}

TEST(NormGradients, AZeroRowHasAFiniteGradient) {
  const Tensor zero = Tensor::zeros(DType::f64, {1, 4});
  for (const char* op : {"lp_norm", "l2_normalize"}) {
    ir::Graph g;
    const ValueId x = g.add_input("x", zero.type());
    const ValueId y = g.add1(table().need(op), {x}, {{"epsilon", 1e-3}});
    std::vector<ValueId> grads(g.values().size(), ir::kNoValue);
    grads[ir::index(y)] = g.add_constant(Tensor::from<double>({1, 4}, std::vector<double>{1, 2, 3, 4}));
    backpropagate(g, 0, {1, 1}, grads);
    g.add_output(grads[ir::index(x)], "dx");
    g.sort();
    const std::vector<Tensor> out = testing::run_graph(g, {zero});
    for (double v : out[0].data<double>()) EXPECT_TRUE(std::isfinite(v)) << op;
  }
}

TEST(NormGradients, MeanVariance) {
  const Tensor x = wide_values({2, 3, 2, 2}, 1);
  expect_gradient({.op = "mean_variance_norm", .in = {x}});
  expect_gradient({.op = "mean_variance_norm", .in = {x}, .attrs = {{"axes", std::vector<int64_t>{1, 3}}}});
}

TEST(NormGradients, LocalResponse) {
  for (int64_t size : {1, 2, 3, 4, 9}) {
    expect_gradient({.op = "lrn",
                     .in = {wide_values({2, 6, 3}, 1)},
                     .attrs = {{"size", size}, {"alpha", 0.5}, {"beta", 0.6}, {"bias", 1.5}}});
  }
}

TEST(NormGradients, MaskedMeanPool) {
  const Tensor mask = Tensor::from<int64_t>({2, 3}, std::vector<int64_t>{1, 1, 0, 1, 0, 0});
  expect_gradient({.op = "masked_mean_pool", .in = {wide_values({2, 3, 4}, 1), mask}});
  const Tensor weights = testing::random_tensor(DType::f64, {2, 3}, 0.5, 1, 2);
  expect_gradient({.op = "masked_mean_pool", .in = {wide_values({2, 3, 4}, 1), weights}});
}

/// The f32 kernels against the f64 kernels, which finite differences verify.
TEST(NormGradients, VectorKernelsMatchDouble) {
  for (const std::string op : {"layer_norm_grad", "rms_norm_grad"}) {
    const size_t results = op == "rms_norm_grad" ? 2 : 3;
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 5}, {4, 16}, {70, 63}, {130, 64}, {400, 384}, {3, 9001}}) {
      const Tensor dy = tests::random_tensor({rows, cols}, 1),
                   x = tests::random_tensor({rows, cols}, 2, 3.0f), scale = tests::random_tensor({cols}, 3),
                   add = tests::random_tensor({rows, cols}, 4);
      for (int form = 0; form < 4; ++form) {
        const std::vector<Tensor> in{dy, x, form & 1 ? scale : Tensor(), form & 2 ? add : Tensor()};
        std::vector<Tensor> exact;
        for (const Tensor& t : in) exact.push_back(t.defined() ? as_type(t, DType::f64) : Tensor());
        const auto want = testing::run(op, exact, {}, results);
        const auto got = tests::run_kernels(op, {}, in, results);
        ASSERT_EQ(got[0].kernel, "vector");
        for (size_t i = 0; i < results; ++i) {
          tests::expect_close(got[0].out[i], want[i].to_doubles(), 1e-5, i == 0 ? 1e-5 : 5e-5,
                              base::concat(op, " ", rows, "x", cols, " result ", i));
        }
      }
    }
  }
}

TEST(NormGradients, BitsDoNotDependOnTheTeam) {
  const Tensor dy = tests::random_tensor({517, 100}, 1), x = tests::random_tensor({517, 100}, 2),
               scale = tests::random_tensor({100}, 3);
  const auto one = tests::run_kernels("layer_norm_grad", {}, {dy, x, scale}, 3, {}, 1)[0].out;
  for (int threads : {2, 3, 4}) {
    const auto many = tests::run_kernels("layer_norm_grad", {}, {dy, x, scale}, 3, {}, threads)[0].out;
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(many[i].same_as(one[i])) << threads;
  }
}

}  // namespace
}  // namespace trireme::ops
