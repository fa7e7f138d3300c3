// Every legal cut of quantized ops against the whole; results are integers, so they are equal.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::expect_cuts;

Tensor random_scales(tensor::Dims dims, uint64_t seed) {
  return testing::random_tensor(DType::f32, std::move(dims), 0.01, 0.1, seed);
}
Tensor bytes(DType type, tensor::Dims dims, uint64_t seed) {
  return testing::random_tensor(type, std::move(dims), type == DType::u8 ? 0 : -100, 100, seed);
}

TEST(QuantCut, ScalesGoWithTheirAxis) {
  const Tensor x = testing::random_tensor(DType::f32, {2, 4, 6}, -3, 3, 1);
  const Tensor q = bytes(DType::i8, {2, 4, 6}, 2), zero = bytes(DType::i8, {4}, 3);
  const Tensor one = Tensor::scalar(0.05f), none = Tensor::scalar(int8_t{3});
  EXPECT_EQ(expect_cuts({.op = "quantize_linear", .in = {x, one, none}}), "abc");
  EXPECT_EQ(expect_cuts({.op = "quantize_linear", .in = {x, random_scales({4}, 4), zero}}), "abc");
  EXPECT_EQ(expect_cuts({.op = "dequantize_linear", .in = {q, random_scales({4}, 4), zero}}), "abc");
  const ir::Attrs blocks{{"axis", int64_t{2}}, {"block_size", int64_t{3}}};
  EXPECT_EQ(expect_cuts({.op = "dequantize_linear", .in = {q, random_scales({2, 4, 2}, 4)}, .attrs = blocks}),
            "ab");
}

TEST(QuantCut, Products) {
  const Tensor x = bytes(DType::u8, {2, 4, 6}, 1), w = bytes(DType::i8, {6, 8}, 2);
  const Tensor one = Tensor::scalar(0.05f), u_zero = Tensor::scalar(uint8_t{9}),
               i_zero = bytes(DType::i8, {8}, 3);
  Tensor no_zero = Tensor::zeros(DType::i8, {8}), bias = Tensor::zeros(DType::i32, {8});
  bias.mutable_data<int32_t>()[5] = 77;
  EXPECT_EQ(expect_cuts({.op = "qlinear",
                         .in = {x, one, u_zero, w, random_scales({8}, 4), no_zero, one, u_zero, bias}}),
            "abo");
  const Tensor image = bytes(DType::u8, {2, 5, 5, 4}, 1), kernel = bytes(DType::i8, {8, 4, 3, 3}, 2);
  const ir::Attrs window{{"kernel_shape", std::vector<int64_t>{3, 3}}};
  EXPECT_EQ(
      expect_cuts({.op = "qconv_nhwc",
                   .in = {image, one, u_zero, kernel, random_scales({8}, 4), no_zero, one, u_zero, bias},
                   .attrs = window}),
      "ao");
  EXPECT_EQ(expect_cuts({.op = "qadd", .in = {x, one, u_zero, x, one, u_zero, one, u_zero}}), "abc");
  const Tensor first = bytes(DType::u8, {2, 4, 5, 5}, 1);
  EXPECT_EQ(expect_cuts({.op = "conv_integer", .in = {first, kernel, u_zero}, .attrs = window}), "no");
  EXPECT_EQ(
      expect_cuts({.op = "qlinear_conv",
                   .in = {first, one, u_zero, kernel, random_scales({8}, 4), no_zero, one, u_zero, bias},
                   .attrs = window}),
      "no");
}

}  // namespace
}  // namespace trireme::ops
