// Every legal cut of einsum, determinants and transforms against the whole.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using testing::values;
using tests::expect_cuts;

TEST(LinalgCut, Einsum) {
  const auto cuts = [](const char* equation, std::vector<Tensor> in) {
    return expect_cuts({.op = "einsum", .in = std::move(in), .attrs = {{"equation", std::string(equation)}}});
  };
  EXPECT_EQ(cuts("bij,bjk->bik", {values({2, 4, 6}, 1), values({2, 6, 2}, 2)}), "abcd");
  EXPECT_EQ(cuts("...ij,jk->...ik", {values({2, 4, 6}, 1), values({6, 2}, 2)}), "abcd");
  EXPECT_EQ(cuts("ii,j->j", {values({4, 4}, 1), values({6}, 2)}), "b");
}

TEST(LinalgCut, MatricesAndSignals) {
  const Tensor x = values({2, 4, 3, 3}, 1);
  EXPECT_EQ(expect_cuts({.op = "det", .in = {x}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "det_grad", .in = {values({2, 4}, 2), x}}), "ab");
  EXPECT_EQ(expect_cuts({.op = "dft", .in = {values({2, 8, 4, 1}, 1), {}, Tensor::scalar<int64_t>(1)}}),
            "ac");
  const Tensor step = Tensor::scalar<int64_t>(2), length = Tensor::scalar<int64_t>(4);
  EXPECT_EQ(expect_cuts({.op = "stft", .in = {values({2, 16, 1}, 1), step, {}, length}}), "b");
  EXPECT_EQ(expect_cuts({.op = "dropout", .in = {x, Tensor::scalar(0.5f)}}), "abcd");
}

}  // namespace
}  // namespace trireme::ops
