// Dense products on the device against the CPU's results.
#include <cstdlib>
#include <functional>

#include "backend/cuda/dense/gemm.h"
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

class DenseCuda : public ::testing::TestWithParam<DType> {
 protected:
  Tensor random(const tensor::Dims& dims, uint32_t seed) const {
    return tests::rounded_to(GetParam(), random_tensor(dims, seed));
  }
  size_t expect_as_cpu(tests::DeviceTrial trial, bool may_refuse = false) const {
    trial.relative = trial.absolute = tests::half_tolerance(GetParam());
    return tests::expect_as_cpu(trial, may_refuse);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DenseCuda, ::testing::Values(DType::f32, DType::f16, DType::bf16),
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
      // The activation's argument is a result too: with bias, without, and with rows that are not multiples
      // of 16 bytes.
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

/// Operands of row_linear with dense weights of `widths` rows.
std::vector<Tensor> row_operands(const std::function<Tensor(tensor::Dims, uint32_t)>& make, int64_t rows,
                                 int64_t k, const std::vector<int64_t>& widths, bool has_bias) {
  std::vector<Tensor> in{make({1, rows, k}, 1), Tensor(), Tensor()};
  for (size_t i = 0; i < widths.size(); ++i) {
    const auto seed = static_cast<uint32_t>(10 + i);
    in.insert(in.end(), {make({widths[i], k}, seed), Tensor(), Tensor(),
                         has_bias ? make({widths[i]}, seed + 10) : Tensor()});
  }
  while (!in.back().defined()) in.pop_back();
  return in;
}

TEST_P(DenseCuda, ProductsOfFewRowsWithWhatStandsBeside) {
  const auto make = [&](const tensor::Dims& dims, uint32_t seed) { return random(dims, seed); };
  for (const int64_t rows : {1, 2, 4, 7}) {
    for (const bool has_bias : {false, true}) {
      // Queries, keys and values after a norm; an odd width leaves half of a warp's pair.
      std::vector<Tensor> in = row_operands(make, rows, 48, {24, 9, 8}, has_bias);
      const ir::Attrs norm{{"epsilon", 1e-3}};
      expect_as_cpu({.op = "row_linear", .in = in, .attrs = norm, .out_count = 3, .kernels = 1});
      in[1] = random({48}, 5);
      expect_as_cpu({.op = "row_linear", .in = in, .attrs = norm, .out_count = 3, .kernels = 1});
      in[1] = random_tensor({48}, 5);  // f32 norm with 16-bit rows
      expect_as_cpu({.op = "row_linear", .in = in, .attrs = norm, .out_count = 3, .kernels = 1});
      // A gated pair.
      in = row_operands(make, rows, 264, {33, 33}, has_bias);
      in[1] = random_tensor({264}, 6, 0.1f);
      expect_as_cpu({.op = "row_linear",
                     .in = in,
                     .attrs = {{"gated", int64_t{1}}, {"activation", std::string("silu")}},
                     .kernels = 1});
      // One product with a residual; rows that end within a warp's share.
      for (const int64_t before : {0, 1}) {
        in = row_operands(make, rows, 520, {41}, has_bias);
        in[2] = random({1, rows, 41}, 7);
        expect_as_cpu({.op = "row_linear",
                       .in = in,
                       .attrs = {{"activation", std::string("silu")}, {"act_before_residual", before}},
                       .kernels = 1});
      }
    }
  }
}

/// So deep that each warp comes back to the places in which it keeps weights that it asked for ahead.
TEST_P(DenseCuda, ProductsOfFewRowsThatAreDeep) {
  const auto make = [&](const tensor::Dims& dims, uint32_t seed) {
    return tests::rounded_to(GetParam(), random_tensor(dims, seed, 0.1f));
  };
  for (const int64_t rows : {1, 5, 8}) {
    std::vector<Tensor> in = row_operands(make, rows, 2312, {18}, true);
    expect_as_cpu({.op = "row_linear", .in = in, .kernels = 1});
    in = row_operands(make, rows, 2312, {17, 17}, false);
    in[1] = random_tensor({2312}, 6, 0.3f);  // factors near 1: bf16 rounds x beside its norm elsewhere
    expect_as_cpu({.op = "row_linear",
                   .in = in,
                   .attrs = {{"gated", int64_t{1}}, {"activation", std::string("silu")}},
                   .kernels = 1});
  }
}

/// Of GPUs from sm_80 on some have 99 KiB for a block: rows, sums and scratch of these together.
TEST(RowLinearCuda, NormalisedHalvesFitABlockOrAreLeftToTheLibrary) {
  const auto make = [](const tensor::Dims& dims, uint32_t seed) {
    return tests::rounded_to(DType::f16, random_tensor(dims, seed, 0.05f));
  };
  for (const auto& [k, kernels] : {std::pair<int64_t, size_t>{5888, 1}, {6144, 0}}) {
    std::vector<Tensor> in = row_operands(make, 8, k, {17, 17}, false);
    in[1] = random_tensor({k}, 6, 0.3f);
    tests::expect_as_cpu({.op = "row_linear",
                          .in = in,
                          .attrs = {{"gated", int64_t{1}}, {"activation", std::string("silu")}},
                          .relative = tests::half_tolerance(DType::f16),
                          .absolute = tests::half_tolerance(DType::f16),
                          .kernels = kernels});
  }
}

TEST_P(DenseCuda, ProductsOfMoreRowsOrInOneOrderAreLeftToTheLibrary) {
  const auto make = [&](const tensor::Dims& dims, uint32_t seed) { return random(dims, seed); };
  expect_as_cpu({.op = "row_linear", .in = row_operands(make, 9, 16, {8}, false), .kernels = 0});
  setenv("TRIREME_CUDA_DETERMINISTIC", "1", 1);
  expect_as_cpu({.op = "row_linear", .in = row_operands(make, 2, 16, {8}, false), .kernels = 0});
  unsetenv("TRIREME_CUDA_DETERMINISTIC");
  expect_as_cpu({.op = "row_linear", .in = row_operands(make, 2, 16, {8}, false), .kernels = 1});
}

TEST_P(DenseCuda, RowsDoNotDependOnTheirMates) {
  const auto device = tests::device_or_skip();
  if (device == nullptr) return;
  const Tensor x = random({8, 520}, 1), w = random({31, 520}, 2), scale = random_tensor({520}, 3);
  const auto run = [&](int64_t first, int64_t last) {
    return tests::run_on(*device, {.op = "row_linear", .in = {x.rows(first, last), scale, Tensor(), w}})[0];
  };
  const Tensor all = run(0, 8);
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 1}, {3, 4}, {2, 5}, {1, 8}})
    EXPECT_TRUE(run(first, last).same_as(all.rows(first, last))) << first << " to " << last;
}

/// Sets the expected result of a linear_grad_w from f64: any algorithm must add in f32 and round once.
void judge_in_f64(tests::DeviceTrial& trial, DType result) {
  const std::vector<double> x = trial.in[0].to_doubles(), dy = trial.in[1].to_doubles();
  const auto k = static_cast<size_t>(trial.in[0].dims().back()),
             n = static_cast<size_t>(trial.in[1].dims().back());
  const bool is_transposed = trial.attrs.get_int("transposed", 0) != 0;
  const double bits = result == DType::f32 ? 24 : result == DType::f16 ? 11 : 8;
  for (size_t i = 0; i < k * n; ++i) {
    const size_t row = is_transposed ? i % k : i / n, column = is_transposed ? i / k : i % n;
    double sum = 0, magnitude = 0;
    for (size_t r = 0; r < x.size() / k; ++r) {
      const double term = x[r * k + row] * dy[r * n + column];
      sum += term;
      magnitude += std::abs(term);
    }
    const double within = std::abs(sum) * std::exp2(-bits) + magnitude * std::exp2(-21) + 1e-7;
    trial.exact.push_back(sum);
    trial.cpu_within.push_back(within);
    trial.device_within.push_back(within);
  }
}

TEST_P(DenseCuda, GradientsOfLinear) {
  for (const int64_t t : {0, 1}) {
    const ir::Attrs attrs{{"transposed", t}};
    const tensor::Dims w = t != 0 ? tensor::Dims{13, 6} : tensor::Dims{6, 13};
    expect_as_cpu({.op = "linear_grad_x", .in = {random({2, 9, 13}, 1), random(w, 2)}, .attrs = attrs});
    for (const int64_t rows : {1, 9, 300}) {
      tests::DeviceTrial trial{.op = "linear_grad_w",
                               .in = {random({2, rows, 6}, 1), random({2, rows, 13}, 2)},
                               .attrs = attrs,
                               .out_count = 2};
      judge_in_f64(trial, GetParam());
      expect_as_cpu(trial);
      trial.out_count = 1;
      expect_as_cpu(trial);
      trial.attrs.set("wide", int64_t{1});
      trial.out_count = 2;
      trial.exact.clear(), trial.cpu_within.clear(), trial.device_within.clear();
      judge_in_f64(trial, DType::f32);
      expect_as_cpu(trial);
    }
    expect_as_cpu({.op = "linear_grad_w",
                   .in = {random({0, 6}, 1), random({0, 16}, 2)},
                   .attrs = attrs,
                   .out_count = 2});
  }
}

/// Extents that the library finishes in its own pass, with every finish that training uses.
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
