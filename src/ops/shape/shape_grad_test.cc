// Gradients of the ops that move elements, against finite differences.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

TEST(ShapeGrad, Views) {
  expect_gradient({.op = "reshape", .in = {values({2, 3, 4}), ints({4, -1})}});
  expect_gradient(
      {.op = "reshape", .in = {values({2, 0, 3}), ints({3, 0})}, .attrs = {{"allowzero", int64_t{1}}}});
  expect_gradient({.op = "flatten", .in = {values({2, 3, 4})}, .attrs = {{"axis", int64_t{-1}}}});
  expect_gradient({.op = "squeeze", .in = {values({2, 1, 4, 1}), ints({-1})}});
  expect_gradient({.op = "squeeze", .in = {values({2, 1, 4, 1})}});
  expect_gradient({.op = "unsqueeze", .in = {values({2, 4}), ints({0, -1})}});
}

TEST(ShapeGrad, Transpose) {
  expect_gradient({.op = "transpose", .in = {values({2, 3, 4})}});
  expect_gradient(
      {.op = "transpose", .in = {values({2, 3, 4})}, .attrs = {{"perm", std::vector<int64_t>{1, 2, 0}}}});
  expect_gradient({.op = "transpose",
                   .in = {values({2, 3, 1, 5})},
                   .attrs = {{"perm", std::vector<int64_t>{2, 0, 3, 1}}}});
}

TEST(ShapeGrad, ExpandAndTile) {
  expect_gradient({.op = "expand", .in = {values({3, 1}), ints({2, 1, 4})}});
  expect_gradient({.op = "expand", .in = {values({}), ints({2, 3})}});
  expect_gradient({.op = "expand", .in = {values({1, 3, 1, 2}), ints({4, 3, 5, 2})}});
  expect_gradient({.op = "tile", .in = {values({2, 3}), ints({3, 2})}});
  expect_gradient({.op = "tile", .in = {values({2, 3, 1}), ints({1, 2, 4})}});
}

TEST(ShapeGrad, ConcatAndSplit) {
  expect_gradient({.op = "concat",
                   .in = {values({2, 3}), values({2, 1}, 2), values({2, 4}, 3)},
                   .attrs = {{"axis", int64_t{-1}}}});
  expect_gradient({.op = "concat", .in = {values({2, 3})}, .attrs = {{"axis", int64_t{0}}}});
  expect_gradient({.op = "split",
                   .in = {values({3, 7}), ints({2, 1, 4})},
                   .attrs = {{"axis", int64_t{1}}},
                   .results = 3});
  expect_gradient(
      {.op = "split", .in = {values({7, 2})}, .attrs = {{"num_outputs", int64_t{3}}}, .results = 3});
  expect_gradient({.op = "split", .in = {values({7, 2}), ints({3, 0, 4})}, .results = 3});
  // The gradient of a piece that nothing reads is zero.
  expect_gradient({.op = "split", .in = {values({5, 2}), ints({2, 3})}, .results = 1});
}

TEST(ShapeGrad, Slice) {
  expect_gradient({.op = "slice", .in = {values({5, 6}), ints({1, -4}), ints({4, -1})}});
  expect_gradient({.op = "slice", .in = {values({5, 6}), ints({-1}), ints({-6}), ints({0}), ints({-2})}});
  expect_gradient({.op = "slice", .in = {values({2, 9, 3}), ints({1}), ints({9}), ints({-2}), ints({3})}});
  expect_gradient({.op = "slice", .in = {values({4}), ints({3}), ints({1})}});
}

TEST(ShapeGrad, BlocksOfSpace) {
  expect_gradient(
      {.op = "depth_to_space", .in = {values({2, 8, 2, 3})}, .attrs = {{"blocksize", int64_t{2}}}});
  expect_gradient({.op = "depth_to_space",
                   .in = {values({1, 8, 3, 2})},
                   .attrs = {{"blocksize", int64_t{2}}, {"mode", std::string("CRD")}}});
  expect_gradient(
      {.op = "space_to_depth", .in = {values({2, 3, 4, 6})}, .attrs = {{"blocksize", int64_t{2}}}});
}

TEST(ShapeGrad, Pad) {
  for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
    const ir::Attrs attrs{{"mode", std::string(mode)}};
    expect_gradient({.op = "pad", .in = {values({4, 5}), ints({1, 2, 3, 0})}, .attrs = attrs});
    expect_gradient({.op = "pad", .in = {values({4, 5}), ints({-1, 2, 1, -2})}, .attrs = attrs});
    expect_gradient(
        {.op = "pad", .in = {values({3, 2, 4}), ints({2, 3}), Tensor(), ints({-1})}, .attrs = attrs});
  }
  expect_gradient({.op = "pad", .in = {values({4, 5}), ints({1, 2, -3, 0}), Tensor::scalar(0.5)}});
}

TEST(ShapeGrad, CropReverseColumnsTriangles) {
  for (const std::vector<int64_t>& to : {std::vector<int64_t>{3, 8}, {7, 2}, {4, 5}}) {
    expect_gradient({.op = "center_crop_pad", .in = {values({4, 5}), ints(to)}});
  }
  expect_gradient({.op = "center_crop_pad",
                   .in = {values({4, 5, 2}), ints({3, 4})},
                   .attrs = {{"axes", std::vector<int64_t>{-1, 0}}}});
  expect_gradient({.op = "reverse_sequence", .in = {values({4, 3, 2}), ints({2, 4, 1})}});
  expect_gradient({.op = "col2im",
                   .in = {values({2, 8, 12}), ints({5, 4}), ints({2, 2})},
                   .attrs = {{"pads", std::vector<int64_t>{0, 0, 0, 0}}}});
  expect_gradient(
      {.op = "col2im",
       .in = {values({1, 6, 16}), ints({6, 5}), ints({2, 3})},
       .attrs = {{"strides", std::vector<int64_t>{2, 1}}, {"pads", std::vector<int64_t>{1, 1, 1, 0}}}});
  expect_gradient({.op = "trilu", .in = {values({2, 4, 4})}});
  expect_gradient(
      {.op = "trilu", .in = {values({3, 5}), Tensor::scalar(int64_t{-1})}, .attrs = {{"upper", int64_t{0}}}});
}

}  // namespace
}  // namespace trireme::ops
