// Every legal cut of products with stored weights against the whole: rows of x, rows of weights, whole groups
// of columns.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::expect_cuts;

Tensor values(DType type, tensor::Dims dims, double low, double high) {
  return testing::random_tensor(type, std::move(dims), low, high, 3);
}

TEST(WeightOnlyCut, RowsAndWholeGroups) {
  const Tensor x = values(DType::f64, {2, 4, 128}, -1, 1), bias = values(DType::f64, {8}, -1, 1);
  const Tensor scale = values(DType::f32, {8, 4}, 0.1, 1), zero = values(DType::i8, {8, 4}, 0, 15);
  const ir::Attrs four{{"bits", int64_t{4}}, {"group", int64_t{32}}};
  const Tensor w = values(DType::u8, {8, 64}, 0, 255);
  for (const int parts : {2, 4}) {
    const std::string rows = parts == 2 ? "ab" : "b";  // rows of x
    EXPECT_EQ(
        expect_cuts({.op = "weight_only_linear", .in = {x, w, scale, zero}, .attrs = four, .parts = parts}),
        rows + "yz");
    EXPECT_EQ(
        expect_cuts(
            {.op = "weight_only_linear", .in = {x, w, scale, zero, bias}, .attrs = four, .parts = parts}),
        rows + "yz");
  }
  // Four groups are divisible neither by eight nor by three.
  EXPECT_EQ(expect_cuts({.op = "weight_only_linear", .in = {x, w, scale, zero}, .attrs = four, .parts = 8}),
            "z");
}

TEST(WeightOnlyCut, FloatsOfSixteenBits) {
  const Tensor x = values(DType::f64, {2, 96}, -1, 1), w = values(DType::bf16, {6, 96}, -1, 1);
  EXPECT_EQ(expect_cuts({.op = "weight_only_linear", .in = {x, w}, .parts = 3}), "yz");
  EXPECT_EQ(expect_cuts({.op = "weight_only_linear", .in = {x, w}, .parts = 2}), "az");
}

}  // namespace
}  // namespace trireme::ops
