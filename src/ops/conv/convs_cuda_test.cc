// Convolutions and their gradients on the device against the CPU's results.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

class ConvCuda : public ::testing::TestWithParam<DType> {
 protected:
  Tensor random(const Dims& dims, uint32_t seed) const {
    return tests::rounded_to(GetParam(), tests::random_tensor(dims, seed));
  }
  void expect_as_cpu(tests::DeviceTrial trial) const {
    trial.relative = trial.absolute = 4 * tests::half_tolerance(GetParam());
    tests::expect_as_cpu(trial);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, ConvCuda, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& at) { return std::string(name_of(at.param)); });

/// A window over two axes.
struct WindowCase {
  Ints kernel, strides, dilations, pads;
  int64_t group;
  ir::Attrs attrs() const {
    return {{"strides", strides}, {"dilations", dilations}, {"pads", pads}, {"group", group}};
  }
};
const std::vector<WindowCase> kWindows{{{1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}, 1},
                                       {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1},
                                       {{3, 2}, {2, 1}, {1, 2}, {1, 0, 0, 2}, 2},
                                       {{3, 3}, {2, 2}, {1, 1}, {0, 0, 1, 1}, 4}};

TEST_P(ConvCuda, ForwardInBothLayouts) {
  for (const WindowCase& c : kWindows) {
    const Dims w{8, 4 / c.group, c.kernel[0], c.kernel[1]};
    expect_as_cpu(
        {.op = "conv", .in = {random({2, 4, 7, 6}, 1), random(w, 2), random({8}, 3)}, .attrs = c.attrs()});
    expect_as_cpu({.op = "conv_nhwc", .in = {random({2, 7, 6, 4}, 1), random(w, 2)}, .attrs = c.attrs()});
    ir::Attrs nchw = c.attrs();
    nchw.set("input_layout", std::string("nchw"));
    expect_as_cpu(
        {.op = "conv_nhwc", .in = {random({2, 4, 7, 6}, 1), random(w, 2), random({8}, 3)}, .attrs = nchw});
  }
}

TEST_P(ConvCuda, OneAndThreeAxes) {
  expect_as_cpu({.op = "conv",
                 .in = {random({2, 3, 9}, 1), random({4, 3, 3}, 2)},
                 .attrs = {{"pads", Ints{1, 1}}, {"strides", Ints{2}}}});
  expect_as_cpu({.op = "conv",
                 .in = {random({1, 2, 4, 5, 3}, 1), random({3, 2, 2, 3, 2}, 2), random({3}, 3)},
                 .attrs = {{"pads", Ints{1, 1, 0, 0, 1, 1}}}});
}

TEST_P(ConvCuda, FinishesWithResidualAndActivation) {
  for (const char* act : {"none", "relu", "silu", "hardswish"}) {
    for (const int64_t before : {0, 1}) {
      expect_as_cpu(
          {.op = "conv_nhwc",
           .in = {random({2, 5, 5, 3}, 1), random({6, 3, 3, 3}, 2), random({6}, 3), random({2, 5, 5, 6}, 4)},
           .attrs = {{"pads", Ints{1, 1, 1, 1}},
                     {"activation", std::string(act)},
                     {"act_before_residual", before}}});
    }
  }
}

/// Columns of f32 products are copied in pieces of 64 MiB: 10,696 of these 10,816 points, then the rest,
/// whose results begin on 16 bytes, as the library is told.
TEST(ConvCudaPieces, TheLastPieceIsShorter) {
  tests::expect_as_cpu(
      {.op = "conv_nhwc",
       .in = {tests::random_tensor({1, 104, 104, 32}, 1), tests::random_tensor({2, 32, 7, 7}, 2),
              tests::random_tensor({2}, 3), tests::random_tensor({1, 104, 104, 2}, 4)},
       .attrs = {{"pads", Ints{3, 3, 3, 3}}, {"activation", std::string("relu")}},
       .relative = 1e-4,
       .absolute = 1e-4});
}

TEST_P(ConvCuda, Gradients) {
  for (const WindowCase& c : kWindows) {
    const Dims w{8, 4 / c.group, c.kernel[0], c.kernel[1]};
    base::ThreadPool pool(1);
    const Dims y = evaluate(table().need("conv_nhwc"), c.attrs(),
                            {tests::random_tensor({2, 7, 6, 4}, 1), tests::random_tensor(w, 2)}, 1, pool)[0]
                       .dims();
    ir::Attrs to_x = c.attrs(), to_w = c.attrs();
    to_x.set("in_shape", Ints{7, 6});
    to_w.set("kernel_shape", c.kernel);
    expect_as_cpu({.op = "conv_nhwc_grad_x", .in = {random(y, 1), random(w, 2)}, .attrs = to_x});
    expect_as_cpu({.op = "conv_nhwc_grad_w", .in = {random({2, 7, 6, 4}, 1), random(y, 2)}, .attrs = to_w});
    const Dims first{y[0], y[3], y[1], y[2]};
    expect_as_cpu({.op = "conv_grad_w", .in = {random({2, 4, 7, 6}, 1), random(first, 2)}, .attrs = to_w});
    to_w.set("input_layout", std::string("nchw"));
    expect_as_cpu({.op = "conv_nhwc_grad_w", .in = {random({2, 4, 7, 6}, 1), random(y, 2)}, .attrs = to_w});
  }
}

TEST_P(ConvCuda, Transposed) {
  expect_as_cpu(
      {.op = "conv_transpose",
       .in = {random({2, 4, 5, 3}, 1), random({4, 3, 3, 2}, 2), random({3}, 3)},
       .attrs = {{"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 0}}, {"output_padding", Ints{1, 0}}}});
  expect_as_cpu({.op = "conv_transpose",
                 .in = {random({1, 4, 6}, 1), random({4, 2, 4}, 2)},
                 .attrs = {{"strides", Ints{2}}, {"group", int64_t{2}}}});
}

}  // namespace
}  // namespace trireme::ops
