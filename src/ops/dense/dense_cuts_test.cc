// Every legal cut of the matrix products against the whole.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using tests::expect_cuts;

Tensor values(tensor::Dims dims, uint64_t seed) {
  return testing::random_tensor(tensor::DType::f64, std::move(dims), -1, 1, seed);
}

TEST(DenseCut, LinearAndItsGradients) {
  const Tensor x = values({2, 4, 6}, 1), bias = values({8}, 3), residual = values({2, 4, 8}, 4), none;
  for (const int64_t transposed : {0, 1}) {
    const Tensor w = transposed != 0 ? values({8, 6}, 2) : values({6, 8}, 2);
    const ir::Attrs attrs{{"transposed", transposed}};
    for (int parts : {2, 3}) {
      EXPECT_EQ(expect_cuts({.op = "linear", .in = {x, w}, .attrs = attrs, .parts = parts}).size(), 4u);
      expect_cuts({.op = "linear", .in = {x, w, bias, residual}, .attrs = attrs, .parts = parts});
      expect_cuts({.op = "linear", .in = {x, w, none, residual}, .attrs = attrs, .parts = parts});
      expect_cuts({.op = "linear_grad_x", .in = {residual, w}, .attrs = attrs, .parts = parts});
      expect_cuts({.op = "linear_grad_w", .in = {x, residual}, .attrs = attrs, .results = 2, .parts = parts});
      expect_cuts({.op = "linear_grad_w", .in = {x, residual}, .attrs = attrs, .parts = parts});
    }
    ir::Attrs act = attrs;
    act.set("activation", std::string("relu"));
    // The summed index stays whole.
    EXPECT_EQ(expect_cuts({.op = "linear", .in = {x, w, bias}, .attrs = act}), "abN");
    EXPECT_EQ(expect_cuts({.op = "linear", .in = {x, w, bias}, .attrs = act, .results = 2}), "abN");
    // The slope is the same on all ranks, so the partial products may be summed afterwards.
    EXPECT_EQ(expect_cuts({.op = "linear_grad_x", .in = {residual, w, x}, .attrs = act}), "abNK");
  }
}

TEST(DenseCut, Products) {
  const Tensor a = values({2, 4, 6}, 1), b = values({2, 6, 8}, 2), one = values({1, 6, 8}, 3);
  EXPECT_EQ(expect_cuts({.op = "matmul", .in = {a, b}}), "aMKN");
  EXPECT_EQ(expect_cuts({.op = "matmul", .in = {a, one}}), "aMKN");
  EXPECT_EQ(expect_cuts({.op = "matmul", .in = {a, values({6, 8}, 4)}}), "aMKN");
  EXPECT_EQ(expect_cuts({.op = "matmul", .in = {a, values({6}, 4)}}), "aMK");
  EXPECT_EQ(expect_cuts({.op = "matmul", .in = {values({6}, 4), b}}), "KaN");
  for (const int64_t ta : {0, 1}) {
    for (const int64_t tb : {0, 1}) {
      const Tensor x = ta != 0 ? values({2, 6, 4}, 1) : a, y = tb != 0 ? values({2, 8, 6}, 2) : b;
      const ir::Attrs attrs{{"transA", ta}, {"transB", tb}};
      EXPECT_EQ(expect_cuts({.op = "batched_gemm", .in = {x, y}, .attrs = attrs}).size(), 4u);
      const Tensor p = ta != 0 ? values({6, 4}, 1) : values({4, 6}, 1);
      const Tensor q = tb != 0 ? values({8, 6}, 2) : values({6, 8}, 2);
      for (const Tensor& c : {values({8}, 5), values({4, 1}, 6), values({4, 8}, 7)})
        EXPECT_EQ(expect_cuts({.op = "gemm", .in = {p, q, c}, .attrs = attrs}).size(), 3u);
      EXPECT_EQ(expect_cuts({.op = "gemm", .in = {p, q}, .attrs = attrs}).size(), 3u);
    }
  }
}

}  // namespace
}  // namespace trireme::ops
