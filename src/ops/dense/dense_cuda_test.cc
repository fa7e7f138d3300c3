// Dense products on the device against the CPU's.
#include "backend/cuda/dense/gemm.h"
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

class DenseCuda : public testing::TestWithParam<DType> {
 protected:
  Tensor random(const tensor::Dims& dims, uint32_t seed) const {
    return tests::rounded_to(GetParam(), random_tensor(dims, seed));
  }
  size_t expect_as_cpu(tests::DeviceTrial trial, bool may_refuse = false) const {
    trial.relative = trial.absolute = tests::half_tolerance(GetParam());
    return tests::expect_as_cpu(trial, may_refuse);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DenseCuda, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& at) { return std::string(name_of(at.param)); });

TEST_P(DenseCuda, MatmulOfMatricesVectorsAndBatches) {
  const std::vector<std::array<tensor::Dims, 2>> shapes{
      {{{1, 1}, {1, 1}}},          {{{7, 33}, {33, 65}}},       {{{5}, {5, 3}}},   {{{4, 5}, {5}}},
      {{{2, 3, 4, 5}, {5, 6}}},    {{{2, 1, 4, 5}, {3, 5, 6}}}, {{{6}, {6}}},      {{{2, 3, 4}, {2, 4, 8}}},
      {{{2, 3, 4, 5}, {3, 5, 2}}}, {{{0, 3}, {3, 2}}},          {{{2, 0}, {0, 2}}}};
  for (const auto& [a, b] : shapes) expect_as_cpu({.op = "matmul", .in = {random(a, 1), random(b, 2)}});
}

TEST_P(DenseCuda, BatchedGemmInBothOrientations) {
  for (const int64_t ta : {0, 1}) {
    for (const int64_t tb : {0, 1}) {
      const tensor::Dims a = ta != 0 ? tensor::Dims{2, 3, 5, 9} : tensor::Dims{2, 3, 9, 5};
      const tensor::Dims b = tb != 0 ? tensor::Dims{1, 3, 4, 5} : tensor::Dims{1, 3, 5, 4};
      expect_as_cpu({.op = "batched_gemm",
                     .in = {random(a, 1), random(b, 2)},
                     .attrs = {{"transA", ta}, {"transB", tb}}});
    }
  }
}

TEST_P(DenseCuda, GemmScalesTransposesAndBroadcasts) {
  for (const tensor::Dims& c : {tensor::Dims{4, 5}, {4, 1}, {5}, {1, 5}, {}}) {
    for (const double beta : {1.0, 0.5}) {
      ir::Attrs attrs{{"transA", int64_t{1}}, {"transB", int64_t{1}}, {"alpha", 0.7}, {"beta", beta}};
      expect_as_cpu(
          {.op = "gemm", .in = {random({6, 4}, 1), random({5, 6}, 2), random(c, 3)}, .attrs = attrs});
    }
  }
  expect_as_cpu({.op = "gemm", .in = {random({3, 8}, 1), random({8, 16}, 2)}});
  expect_as_cpu({.op = "gemm", .in = {random({3, 0}, 1), random({0, 16}, 2), random({16}, 3)}});
}

TEST_P(DenseCuda, LinearWithEveryActivation) {
  for (const char* act : {"none", "relu", "clip", "sigmoid", "silu", "hardswish", "hardsigmoid", "gelu_erf",
                          "gelu_tanh", "tanh", "leaky"}) {
    for (const int64_t before : {0, 1}) {
      const ir::Attrs attrs{
          {"activation", std::string(act)}, {"act_before_residual", before}, {"transposed", before}};
      const tensor::Dims w = before != 0 ? tensor::Dims{24, 16} : tensor::Dims{16, 24};
      expect_as_cpu({.op = "linear",
                     .in = {random({2, 5, 16}, 1), random(w, 2), random({24}, 3), random({2, 5, 24}, 4)},
                     .attrs = attrs});
      expect_as_cpu({.op = "linear",
                     .in = {random({3, 16}, 1), random(w, 2), Tensor(), random({3, 24}, 4)},
                     .attrs = attrs});
      // The argument is a result too: with a bias, without, and of rows that 16 bytes do not divide.
      expect_as_cpu({.op = "linear",
                     .in = {random({2, 5, 16}, 1), random(w, 2), random({24}, 3)},
                     .attrs = attrs,
                     .out_count = 2});
      expect_as_cpu({.op = "linear",
                     .in = {random({3, 16}, 1), random(w, 2), Tensor(), random({3, 24}, 4)},
                     .attrs = attrs,
                     .out_count = 2});
      expect_as_cpu(
          {.op = "linear",
           .in = {random({3, 7}, 1), random(before != 0 ? tensor::Dims{13, 7} : tensor::Dims{7, 13}, 2)},
           .attrs = attrs,
           .out_count = 2});
    }
  }
  expect_as_cpu({.op = "linear", .in = {random({3, 7}, 1), random({7, 13}, 2), random({13}, 3)}});
  expect_as_cpu({.op = "linear", .in = {random({0, 7}, 1), random({7, 13}, 2), random({13}, 3)}});
}

TEST_P(DenseCuda, ProductsTimesSlopes) {
  for (const char* act : {"relu", "clip", "sigmoid", "silu", "hardswish", "hardsigmoid", "gelu_erf",
                          "gelu_tanh", "tanh", "leaky"}) {
    for (const int64_t t : {0, 1}) {
      const ir::Attrs attrs{{"activation", std::string(act)}, {"transposed", t}};
      for (const int64_t k : {7, 16}) {
        const tensor::Dims w = t != 0 ? tensor::Dims{13, k} : tensor::Dims{k, 13};
        expect_as_cpu({.op = "linear_grad_x",
                       .in = {random({2, 9, 13}, 1), random(w, 2), random({2, 9, k}, 3)},
                       .attrs = attrs});
      }
      expect_as_cpu({.op = "linear_grad_x",
                     .in = {random({0, 13}, 1), random(t != 0 ? tensor::Dims{13, 8} : tensor::Dims{8, 13}, 2),
                            random({0, 8}, 3)},
                     .attrs = attrs});
    }
  }
}

TEST_P(DenseCuda, GradientsOfLinear) {
  for (const int64_t t : {0, 1}) {
    const ir::Attrs attrs{{"transposed", t}};
    const tensor::Dims w = t != 0 ? tensor::Dims{13, 6} : tensor::Dims{6, 13};
    expect_as_cpu({.op = "linear_grad_x", .in = {random({2, 9, 13}, 1), random(w, 2)}, .attrs = attrs});
    for (const int64_t rows : {1, 9, 300}) {
      // Sums of 300 terms of 16 bits: the CPU rounds once too, but in another order.
      tests::DeviceTrial trial{.op = "linear_grad_w",
                               .in = {random({2, rows, 6}, 1), random({2, rows, 13}, 2)},
                               .attrs = attrs,
                               .out_count = 2};
      expect_as_cpu(trial);
      trial.out_count = 1;
      expect_as_cpu(trial);
      trial.attrs.set("wide", int64_t{1});
      trial.out_count = 2;
      expect_as_cpu(trial);
    }
    expect_as_cpu({.op = "linear_grad_w",
                   .in = {random({0, 6}, 1), random({0, 16}, 2)},
                   .attrs = attrs,
                   .out_count = 2});
  }
}

/// Extents that a library finishes in its own pass, with all that training asks of it.
TEST_P(DenseCuda, TrainingFormsOfAlignedProducts) {
  const Tensor x = random({2, 150, 64}, 1), dy = random({2, 150, 128}, 2), b = random({128}, 4);
  for (const int64_t t : {0, 1}) {
    const Tensor w = random(t != 0 ? tensor::Dims{128, 64} : tensor::Dims{64, 128}, 3);
    const ir::Attrs gelu{{"activation", std::string("gelu_tanh")}, {"transposed", t}};
    expect_as_cpu({.op = "linear", .in = {x, w, b}, .attrs = gelu, .out_count = 2});
    expect_as_cpu({.op = "linear", .in = {x, w}, .attrs = gelu, .out_count = 2});
    expect_as_cpu({.op = "linear_grad_x", .in = {dy, w, x}, .attrs = gelu});
    for (const int64_t wide : {0, 1}) {
      const ir::Attrs attrs{{"transposed", t}, {"wide", wide}};
      expect_as_cpu({.op = "linear_grad_w", .in = {x, dy}, .attrs = attrs, .out_count = 2});
    }
  }
}

TEST(DenseCudaPlans, AreMadeWithoutADevice) {
  const auto plan = cuda::prepare_gemm({}, {.m = 8, .n = 8, .k = 8, .finish = {.bias = true}});
  EXPECT_GE(plan->workspace_bytes(), 0);
}

}  // namespace
}  // namespace trireme::ops
