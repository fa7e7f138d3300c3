// Gradients of matmul, gemm, batched_gemm and linear against finite differences, in every orientation.
#include "ops/dense/activation.h"
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using testing::expect_gradient;
using testing::random_tensor;
using testing::run;

tensor::Tensor f64(Dims dims, uint64_t seed) {
  return random_tensor(DType::f64, std::move(dims), -1, 1, seed);
}

TEST(DenseGradients, MatmulByNumpyRules) {
  const std::vector<std::pair<Dims, Dims>> shapes{
      {{3, 4}, {4, 5}},          {{4}, {4, 5}},          {{3, 4}, {4}},          {{4}, {4}},
      {{2, 3, 4}, {4, 5}},       {{2, 1, 3, 4}, {4, 1}}, {{3, 4}, {2, 4, 5}},    {{2, 3, 4}, {2, 4, 5}},
      {{2, 1, 3, 4}, {5, 4, 2}}, {{4}, {2, 4, 3}},       {{2, 3, 4}, {1, 4, 5}},
  };
  for (const auto& [a, b] : shapes) {
    SCOPED_TRACE(tensor::to_string(a) + " x " + tensor::to_string(b));
    expect_gradient({.op = "matmul", .in = {f64(a, 1), f64(b, 2)}});
  }
}

TEST(DenseGradients, BatchedGemmInEveryOrientation) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const ir::Attrs attrs{{"transA", int64_t{ta}}, {"transB", int64_t{tb}}};
      const Dims a = ta ? Dims{2, 1, 4, 3} : Dims{2, 1, 3, 4}, b = tb ? Dims{3, 5, 4} : Dims{3, 4, 5};
      expect_gradient({.op = "batched_gemm", .in = {f64(a, 1), f64(b, 2)}, .attrs = attrs});
    }
  }
}

TEST(DenseGradients, GemmScalesTransposesAndReducesC) {
  const std::vector<Dims> cs{{}, {5}, {1, 5}, {3, 1}, {3, 5}};
  for (size_t i = 0; i < cs.size(); ++i) {
    const bool ta = i % 2 != 0, tb = i / 2 % 2 != 0;
    const ir::Attrs attrs{
        {"transA", int64_t{ta}}, {"transB", int64_t{tb}}, {"alpha", i == 0 ? 1.0 : 0.5}, {"beta", 2.0}};
    const auto a = f64(ta ? Dims{4, 3} : Dims{3, 4}, 1), b = f64(tb ? Dims{5, 4} : Dims{4, 5}, 2);
    expect_gradient({.op = "gemm", .in = {a, b, f64(cs[i], 3)}, .attrs = attrs});
    expect_gradient({.op = "gemm", .in = {a, b}, .attrs = attrs});
  }
}

TEST(DenseGradients, LinearWithBiasAndResidual) {
  for (const bool t : {false, true}) {
    const ir::Attrs attrs{{"transposed", int64_t{t}}};
    const auto x = f64({2, 3, 4}, 1), w = f64(t ? Dims{5, 4} : Dims{4, 5}, 2), bias = f64({5}, 3),
               residual = f64({2, 3, 5}, 4);
    expect_gradient({.op = "linear", .in = {x, w}, .attrs = attrs});
    expect_gradient({.op = "linear", .in = {x, w, bias}, .attrs = attrs});
    expect_gradient({.op = "linear", .in = {x, w, {}, residual}, .attrs = attrs});
    expect_gradient({.op = "linear", .in = {x, w, bias, residual}, .attrs = attrs});
  }
}

/// Activations whose derivative follows from the result, and others for which the product is recomputed.
TEST(DenseGradients, LinearWithActivation) {
  const auto x = f64({6, 4}, 1), w = f64({4, 5}, 2), bias = f64({5}, 3), residual = f64({6, 5}, 4);
  for (const std::string act :
       {"relu", "clip", "leaky", "gelu_erf", "gelu_tanh", "silu", "tanh", "sigmoid"}) {
    for (const bool before : {false, true}) {
      const ir::Attrs attrs{{"activation", act},
                            {"lo", -0.4},
                            {"hi", 0.7},
                            {"alpha", 0.1},
                            {"act_before_residual", int64_t{before}}};
      expect_gradient({.op = "linear", .in = {x, w, bias, residual}, .attrs = attrs});
      expect_gradient({.op = "linear", .in = {x, w}, .attrs = attrs});
      // The activation's argument is a result too, and gradients arrive through both.
      expect_gradient({.op = "linear", .in = {x, w, bias, residual}, .attrs = attrs, .results = 2});
    }
  }
}

TEST(DenseGradients, LeakyHasTheSlopeOfItsLeftSideAtZero) {
  const ActivationSpec leaky{.kind = ActivationKind::leaky, .alpha = 0.25f};
  for (const auto& [x, slope] : {std::pair{-1.0, 0.25}, {0.0, 0.25}, {1.0, 1.0}})
    EXPECT_EQ(activation_slope(leaky, x), slope) << x;
}

TEST(DenseGradients, SecondDerivativesOfLinear) {
  for (const bool t : {false, true}) {
    const ir::Attrs attrs{{"transposed", int64_t{t}}};
    const auto x = f64({2, 3, 4}, 1), w = f64(t ? Dims{5, 4} : Dims{4, 5}, 2), dy = f64({2, 3, 5}, 3);
    expect_gradient({.op = "linear_grad_x", .in = {dy, w}, .attrs = attrs});
    expect_gradient({.op = "linear_grad_w", .in = {x, dy}, .attrs = attrs, .results = 2});
  }
}

TEST(DenseGradients, WideResultsAreTheSumsBeforeRounding) {
  const auto f32 = [](const Tensor& x) { return run("cast", {x}, {{"to", int64_t{1}}})[0]; };
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const int64_t t : {0, 1}) {
      const Tensor x = random_tensor(type, {70, 19}, -1, 1, 1), dy = random_tensor(type, {70, 33}, -1, 1, 2);
      const auto wide = run("linear_grad_w", {x, dy}, {{"transposed", t}, {"wide", int64_t{1}}}, 2);
      const auto want = run("linear_grad_w", {f32(x), f32(dy)}, {{"transposed", t}}, 2);
      for (size_t r = 0; r < 2; ++r) {
        ASSERT_EQ(wide[r].type().to_string(), want[r].type().to_string());
        for (size_t i = 0; i < static_cast<size_t>(want[r].elements()); ++i)
          ASSERT_NEAR(wide[r].data<float>()[i], want[r].data<float>()[i], 1e-5) << r << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
