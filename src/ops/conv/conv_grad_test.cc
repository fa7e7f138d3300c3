// Gradients of the convolutions against finite differences in double.
#include "ops/conv/against_double.h"
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using testing::expect_gradient;
using testing::random_double;
using Ints = std::vector<int64_t>;

struct WindowForm {
  tensor::Dims x, w;  // x [n, c, spatial...], w [oc, c / group, kernel...]
  ir::Attrs attrs;
};

std::vector<WindowForm> window_forms() {
  return {
      {{2, 3, 5, 6}, {4, 3, 3, 3}, {{"pads", Ints{1, 1, 1, 1}}}},
      {{1, 2, 6, 7}, {3, 2, 3, 3}, {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}}},
      {{2, 2, 5, 5}, {3, 2, 1, 1}, {{"strides", Ints{2, 2}}}},
      {{1, 4, 6, 5},
       {6, 2, 3, 2},
       {{"group", int64_t{2}}, {"strides", Ints{3, 1}}, {"pads", Ints{0, 1, 2, 0}}}},
      {{1, 3, 7, 8},
       {3, 1, 3, 3},
       {{"group", int64_t{3}}, {"dilations", Ints{2, 1}}, {"strides", Ints{1, 2}}}},
      {{1, 2, 5, 6}, {2, 2, 2, 4}, {{"auto_pad", std::string("SAME_UPPER")}, {"strides", Ints{2, 2}}}},
  };
}

tensor::Dims last(const tensor::Dims& d) { return {d[0], d[2], d[3], d[1]}; }

TEST(ConvGrad, OnnxLayout) {
  for (const WindowForm& f : window_forms()) {
    expect_gradient({.op = "conv",
                     .in = {random_double(f.x, 1), random_double(f.w, 2), random_double({f.w[0]}, 3)},
                     .attrs = f.attrs});
  }
  expect_gradient({.op = "conv",
                   .in = {random_double({2, 2, 7}, 1), random_double({3, 2, 3}, 2)},
                   .attrs = {{"strides", Ints{2}}}});
  expect_gradient({.op = "conv",
                   .in = {random_double({1, 2, 4, 3, 4}, 1), random_double({2, 2, 2, 2, 3}, 2)},
                   .attrs = {{"pads", Ints{1, 0, 1, 0, 0, 1}}}});
}

TEST(ConvGrad, Transposed) {
  const Tensor x = random_double({2, 4, 3, 4}, 1), w = random_double({4, 3, 3, 2}, 2),
               b = random_double({3}, 3);
  expect_gradient({.op = "conv_transpose", .in = {x, w, b}});
  expect_gradient(
      {.op = "conv_transpose",
       .in = {x, w, b},
       .attrs = {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 0, 1}}, {"output_padding", Ints{1, 2}}}});
  expect_gradient({.op = "conv_transpose",
                   .in = {x, random_double({4, 2, 2, 2}, 2), random_double({4}, 3)},
                   .attrs = {{"group", int64_t{2}},
                             {"dilations", Ints{2, 1}},
                             {"output_shape", Ints{6, 7}},
                             {"strides", Ints{2, 2}}}});
}

TEST(ConvGrad, ChannelsLast) {
  for (const WindowForm& f : window_forms()) {
    const Tensor x = random_double(last(f.x), 1), w = random_double(f.w, 2), b = random_double({f.w[0]}, 3);
    expect_gradient({.op = "conv_nhwc", .in = {x, w}, .attrs = f.attrs});
    expect_gradient({.op = "conv_nhwc", .in = {x, w, b}, .attrs = f.attrs});
  }
}

TEST(ConvGrad, ChannelsLastEpilogues) {
  const WindowForm f = window_forms()[0];
  const Tensor x = random_double(last(f.x), 1), w = random_double(f.w, 2), b = random_double({f.w[0]}, 3),
               r = random_double({2, 5, 6, 4}, 4);
  for (const char* act : {"none", "relu", "silu", "tanh", "gelu_erf", "leaky", "clip", "hardswish"}) {
    for (const int64_t before : {0, 1}) {
      ir::Attrs attrs = f.attrs;
      attrs.set("activation", std::string(act));
      attrs.set("act_before_residual", before);
      expect_gradient(
          {.op = "conv_nhwc", .in = {x, w, b, r}, .attrs = attrs, .step = 1e-7, .tolerance = 2e-5});
    }
  }
  ir::Attrs attrs = f.attrs;
  attrs.set("input_layout", std::string("nchw"));
  expect_gradient({.op = "conv_nhwc", .in = {random_double(f.x, 1), w, b}, .attrs = attrs});
}

}  // namespace
}  // namespace trireme::ops
