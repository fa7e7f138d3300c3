// Convolutions of one and three spatial axes, forward and backward, against the plain nodes in double: random
// windows, groups and epilogues.
#include <cstring>
#include <random>
#include <tuple>

#include "ops/conv/against_double.h"
#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

/// A channels-last convolution over `spatial`.
struct Layer {
  Dims x, w, y;
  ir::Attrs attrs;
  bool bias = false, residual = false;
};

int64_t draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// Extents from a few points to a few vectors, and windows that fit the padded input.
Layer random_layer(std::mt19937& random, size_t axes) {
  Layer l;
  const int64_t groups = Ints{1, 1, 1, 2, 4}[static_cast<size_t>(draw(random, 0, 4))];
  const bool depthwise = draw(random, 0, 4) == 0;
  const int64_t c = depthwise ? draw(random, 1, 40) : groups * draw(random, 1, 20);
  const int64_t oc = depthwise ? c : groups * draw(random, 1, 20);
  const int64_t group = depthwise ? c : groups;
  l.x = {draw(random, 1, 3)};
  l.w = {oc, c / group};
  l.y = {l.x[0]};
  Ints strides, dilations, begin, end;
  for (size_t i = 0; i < axes; ++i) {
    const int64_t kernel = axes == 3 && draw(random, 0, 1) == 1 ? 3 : draw(random, 1, 4);
    dilations.push_back(draw(random, 0, 3) == 0 ? 2 : 1);
    strides.push_back(draw(random, 0, 2) == 0 ? 2 : 1);
    begin.push_back(draw(random, 0, std::min<int64_t>(2, kernel - 1)));
    end.push_back(draw(random, 0, std::min<int64_t>(2, kernel - 1)));
    const int64_t reach = (kernel - 1) * dilations.back() + 1;
    l.x.push_back(reach + draw(random, 0, axes == 1 ? 60 : 9));
    l.w.push_back(kernel);
    l.y.push_back((l.x.back() + begin.back() + end.back() - reach) / strides.back() + 1);
  }
  l.x.push_back(c);
  l.y.push_back(oc);
  begin.insert(begin.end(), end.begin(), end.end());
  l.attrs = {{"strides", strides}, {"dilations", dilations}, {"pads", begin}, {"group", group}};
  l.bias = draw(random, 0, 1) == 1;
  l.residual = draw(random, 0, 1) == 1;
  return l;
}

/// Returns how many kernels accept the node; each must be close to double, with equal bits for 1 to 4
/// threads.
size_t expect_close(const std::string& op, const ir::Attrs& attrs, const std::vector<Tensor>& in,
                    const std::vector<size_t>& fed) {
  std::vector<Tensor> exact;
  for (const Tensor& t : in) exact.push_back(testing::in_double(t));
  const Tensor want = testing::run(op, exact, attrs)[0];
  const auto alone = tests::run_kernels(op, attrs, in, 1, fed, 1);
  for (const int threads : {1, 2, 4}) {
    const auto results = tests::run_kernels(op, attrs, in, 1, fed, threads);
    for (size_t k = 0; k < results.size(); ++k) {
      SCOPED_TRACE(op + " " + results[k].kernel + ", threads " + std::to_string(threads));
      EXPECT_EQ(results[k].out[0].dims(), want.dims());
      EXPECT_LT(testing::largest_difference(results[k].out[0], want), 1e-5);
      EXPECT_EQ(std::memcmp(results[k].out[0].raw(), alone[k].out[0].raw(),
                            static_cast<size_t>(want.elements()) * sizeof(float)),
                0);
    }
  }
  return alone.size();
}

std::vector<Tensor> operands(const Layer& l) {
  std::vector<Tensor> in{tests::random_tensor(l.x, 1), tests::random_tensor(l.w, 2), Tensor(), Tensor()};
  if (l.bias) in[2] = tests::random_tensor({l.w[0]}, 3);
  if (l.residual) in[3] = tests::random_tensor(l.y, 4);
  return in;
}

TEST(ConvAxes, FastKernelsStayCloseToDouble) {
  std::mt19937 random(17);
  size_t lines = 0, blocks = 0;
  for (int i = 0; i < 60; ++i) {
    const size_t axes = i % 2 == 0 ? 1 : 3;
    Layer l = random_layer(random, axes);
    SCOPED_TRACE(tensor::to_string(l.x) + " by " + tensor::to_string(l.w));
    if (draw(random, 0, 1) == 1) l.attrs.set("activation", std::string("relu"));
    const size_t took = expect_close("conv_nhwc", l.attrs, operands(l), {0});
    EXPECT_GE(took, 1u) << "no kernel for constant weights";
    (axes == 1 ? lines : blocks) += took;
  }
  EXPECT_GE(lines, 30u);
  EXPECT_GE(blocks, 30u);
}

/// The layers of video networks: channels and planes for which the two-dimensional kernels use different
/// algorithms, including edges that their tiles do not divide.
TEST(ConvAxes, LayersOfVideoNetworks) {
  std::mt19937 random(29);
  for (const int64_t side : {7, 9, 14, 17, 28}) {
    for (const int64_t channels : {16, 48, 144}) {
      for (const int64_t kernel : {1, 3}) {
        for (const int64_t stride : {1, 2}) {
          const int64_t depth = draw(random, 1, 5), pad = kernel / 2;
          Layer l{.x = {1, depth, side, side, channels},
                  .w = {32, channels, 3, kernel, kernel},
                  .y = {},
                  .attrs = {}};
          l.attrs = {{"strides", Ints{stride, stride, stride}}, {"pads", Ints{1, pad, pad, 1, pad, pad}}};
          l.y = {1, (depth - 1) / stride + 1, (side - 1) / stride + 1, (side - 1) / stride + 1, 32};
          l.bias = l.residual = draw(random, 0, 1) == 1;
          SCOPED_TRACE(tensor::to_string(l.x) + " by " + tensor::to_string(l.w));
          EXPECT_GE(expect_close("conv_nhwc", l.attrs, operands(l), {0}), 1u);
        }
      }
    }
  }
}

/// Convolutions that share an initializer but differ in what decides the order of packed taps.
TEST(ConvAxes, WeightsThatTwoLayersShareArePackedForEach) {
  const std::vector<Tensor> in{tests::random_tensor({1, 5, 9, 9, 16}, 1),
                               tests::random_tensor({16, 4, 3, 3, 3}, 2)};
  const ir::Attrs dense{{"group", int64_t{4}}};
  ir::Attrs dilated = dense, strided = dense;
  dilated.set("dilations", Ints{1, 2, 2});
  strided.set("strides", Ints{1, 1, 3});
  const std::vector<ir::Attrs> layers{dense, dilated, strided};
  const std::vector<Tensor> together = tests::run_sharing_packs("conv_nhwc", layers, in);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto alone = tests::run_kernels("conv_nhwc", layers[i], in, 1, {0});
    EXPECT_EQ(alone[0].kernel, "depth_taps");
    EXPECT_TRUE(together[i].same_as(alone[0].out[0])) << layers[i].to_string();
  }
}

/// An image gives the same bits alone as among others.
TEST(ConvAxes, ImagesDoNotSeeEachOther) {
  std::mt19937 random(5);
  for (int i = 0; i < 10; ++i) {
    Layer l = random_layer(random, 3);
    l.residual = false;
    std::vector<Tensor> in = operands(l);
    const auto alone = tests::run_kernels("conv_nhwc", l.attrs, in, 1, {0});
    const size_t floats = static_cast<size_t>(in[0].elements());
    Dims more = l.x;
    more[0] += 2;
    Tensor x = tests::random_tensor(more, 9);
    std::memcpy(x.mutable_data<float>().data(), in[0].raw(), floats * sizeof(float));
    in[0] = x;
    const auto among = tests::run_kernels("conv_nhwc", l.attrs, in, 1, {0});
    ASSERT_EQ(alone.size(), among.size());
    for (size_t k = 0; k < alone.size(); ++k)
      EXPECT_EQ(std::memcmp(among[k].out[0].raw(), alone[k].out[0].raw(),
                            static_cast<size_t>(alone[k].out[0].elements()) * sizeof(float)),
                0);
  }
}

/// 1-D convolutions, and those over one of two or three axes, take the Winograd form of lines.
TEST(ConvAxes, KernelsThatAreLines) {
  const std::pair<Dims, Dims> layers[] = {{{2, 50, 48}, {32, 48, 3}},
                                          {{2, 50, 33}, {40, 33, 7}},
                                          {{2, 12, 15, 32}, {32, 32, 1, 5}},
                                          {{2, 12, 15, 32}, {32, 32, 9, 1}},
                                          {{2, 9, 6, 7, 40}, {32, 40, 3, 1, 1}},
                                          {{2, 5, 6, 17, 32}, {32, 32, 1, 1, 4}}};
  for (const auto& [x, w] : layers) {
    Layer l{.x = x, .w = w, .y = x, .attrs = {}};
    Ints begin, end;
    for (size_t d = 2; d < w.size(); ++d) {
      begin.push_back((w[d] - 1) / 2);
      end.push_back(w[d] - 1 - begin.back());
    }
    l.y.back() = w[0];
    l.bias = l.residual = true;
    begin.insert(begin.end(), end.begin(), end.end());
    l.attrs = {{"pads", begin}, {"activation", std::string("relu")}};
    SCOPED_TRACE(tensor::to_string(l.x) + " by " + tensor::to_string(l.w));
    EXPECT_GE(expect_close("conv_nhwc", l.attrs, operands(l), {0}), 2u);
    EXPECT_EQ(tests::run_kernels("conv_nhwc", l.attrs, operands(l), 1, {0})[0].kernel, "winograd_lines");
  }
}

/// The kernels of training: changing weights and both gradients.
TEST(ConvAxes, TrainingHasFastKernels) {
  std::mt19937 random(23);
  size_t forward = 0, to_x = 0, to_w = 0;
  for (int i = 0; i < 60; ++i) {
    const size_t axes = i % 2 == 0 ? 1 : 3;
    const Layer l = random_layer(random, axes);
    SCOPED_TRACE(tensor::to_string(l.x) + " by " + tensor::to_string(l.w) + " " + l.attrs.to_string());
    const Tensor x = tests::random_tensor(l.x, 1), w = tests::random_tensor(l.w, 2),
                 dy = tests::random_tensor(l.y, 3);
    forward += expect_close("conv_nhwc", l.attrs, operands(l), {0, 1});
    ir::Attrs attrs = l.attrs;
    attrs.set("in_shape", Ints(l.x.begin() + 1, l.x.end() - 1));
    to_x += expect_close("conv_nhwc_grad_x", attrs, {dy, w}, {0, 1});
    attrs = l.attrs;
    attrs.set("kernel_shape", Ints(l.w.begin() + 2, l.w.end()));
    to_w += expect_close("conv_nhwc_grad_w", attrs, {x, dy}, {0, 1});
  }
  EXPECT_GE(forward, 55u);
  EXPECT_GE(to_x, 40u);  // dilated ones with strides above 1 have none
  EXPECT_GE(to_w, 55u);
}

/// Kernels of 1 x 3 x 3 and 3 x 1 x 1 train as convolutions of two axes.
TEST(ConvAxes, WindowsThatMoveNothingOnAnAxisTrainWithoutIt) {
  for (const auto& [kernel, to_x, to_w] : {std::tuple{Ints{1, 3, 3}, "winograd", "winograd"},
                                           std::tuple{Ints{3, 1, 1}, "implicit_gemm", "columns"}}) {
    const Dims x{2, 6, 9, 8, 24}, w{32, 24, kernel[0], kernel[1], kernel[2]}, y{2, 6, 9, 8, 32};
    const Ints half{kernel[0] / 2, kernel[1] / 2, kernel[2] / 2};
    ir::Attrs attrs{{"pads", Ints{half[0], half[1], half[2], half[0], half[1], half[2]}}};
    const Tensor dy = tests::random_tensor(y, 3), weights = tests::random_tensor(w, 2);
    attrs.set("in_shape", Ints{6, 9, 8});
    EXPECT_GE(expect_close("conv_nhwc_grad_x", attrs, {dy, weights}, {0, 1}), 1u);
    EXPECT_EQ(tests::run_kernels("conv_nhwc_grad_x", attrs, {dy, weights}, 1, {0, 1})[0].kernel, to_x);
    attrs.erase("in_shape");
    attrs.set("kernel_shape", kernel);
    const std::vector<Tensor> in{tests::random_tensor(x, 1), dy};
    EXPECT_GE(expect_close("conv_nhwc_grad_w", attrs, in, {0, 1}), 1u);
    EXPECT_EQ(tests::run_kernels("conv_nhwc_grad_w", attrs, in, 1, {0, 1})[0].kernel, to_w);
  }
}

/// Layers of video networks whose taps in depth reach all slices, some, or one.
TEST(ConvAxes, LayersOfVideoNetworksTrain) {
  for (const int64_t depth : {1, 2, 5}) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t kernel : {1, 3}) {
        const int64_t pad = kernel / 2, side = 9;
        const int64_t out = (side - 1) / stride + 1, slices = (depth - 1) / stride + 1;
        const Dims x{2, depth, side, side, 24}, w{32, 24, kernel, kernel, kernel}, y{2, slices, out, out, 32};
        SCOPED_TRACE(tensor::to_string(x) + " by " + tensor::to_string(w));
        const ir::Attrs attrs{{"strides", Ints{stride, stride, stride}},
                              {"pads", Ints{pad, pad, pad, pad, pad, pad}}};
        const Tensor dy = tests::random_tensor(y, 3);
        ir::Attrs to_x = attrs, to_w = attrs;
        to_x.set("in_shape", Ints{depth, side, side});
        to_w.set("kernel_shape", Ints{kernel, kernel, kernel});
        EXPECT_EQ(expect_close("conv_nhwc", attrs, {tests::random_tensor(x, 1), tests::random_tensor(w, 2)},
                               {0, 1}),
                  1u);
        EXPECT_GE(expect_close("conv_nhwc_grad_x", to_x, {dy, tests::random_tensor(w, 2)}, {0, 1}), 1u);
        EXPECT_GE(expect_close("conv_nhwc_grad_w", to_w, {tests::random_tensor(x, 1), dy}, {0, 1}), 1u);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
