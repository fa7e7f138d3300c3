// Fast kernels of convolutions with changing weights, forward and backward, against the plain nodes in
// double.
#include <cstring>

#include "ops/conv/against_double.h"
#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

struct Layer {
  int64_t n, h, w, c, oc, k, stride, pad;
  int64_t group = 1, dilation = 1;
};

/// The layers of ResNet-18/50 at small extents, a first layer, odd ones, and one with many tiles and few
/// sums.
std::vector<Layer> layers() {
  return {
      {2, 17, 19, 3, 64, 7, 2, 3},     {2, 9, 11, 64, 64, 3, 1, 1},      {1, 10, 9, 64, 128, 3, 2, 1},
      {2, 9, 8, 64, 128, 1, 2, 0},     {3, 7, 7, 128, 128, 3, 1, 1},     {2, 7, 7, 256, 64, 1, 1, 0},
      {1, 7, 7, 512, 48, 3, 1, 1},     {40, 14, 14, 16, 20, 3, 1, 1},    {2, 6, 7, 5, 9, 3, 1, 1},
      {1, 8, 8, 1, 8, 5, 1, 2},        {2, 11, 9, 20, 33, 3, 3, 1},      {1, 9, 9, 24, 40, 3, 1, 2},
      {2, 8, 9, 24, 36, 3, 1, 1, 3},   {2, 8, 9, 24, 36, 3, 2, 1, 3},    {1, 12, 13, 18, 7, 3, 1, 2, 1, 2},
      {2, 9, 9, 16, 16, 2, 2, 0},      {1, 5, 4, 48, 17, 4, 4, 0},       {2, 10, 9, 24, 24, 3, 1, 1, 24},
      {2, 10, 9, 37, 37, 3, 2, 1, 37}, {1, 11, 12, 16, 16, 5, 2, 2, 16}, {1, 9, 9, 8, 8, 3, 1, 2, 8, 2},
      {60, 10, 10, 24, 24, 3, 1, 1},   {1, 6, 6, 16, 20, 1, 1, 1},       {1, 7, 7, 16, 20, 1, 2, 1},
      {1, 6, 6, 17, 20, 2, 1, 3},      {1, 6, 6, 32, 300, 1, 1, 0},      {1, 6, 5, 3, 5, 3, 2, 0},
      {3, 98, 97, 32, 16, 3, 1, 0}};
}

ir::Attrs attrs_of(const Layer& l) {
  return {{"strides", Ints{l.stride, l.stride}},
          {"pads", Ints{l.pad, l.pad, l.pad, l.pad}},
          {"dilations", Ints{l.dilation, l.dilation}},
          {"group", l.group}};
}

/// Every accepting kernel stays close to double, and gives the same bits for 1 to 4 threads. At least one
/// must accept.
void expect_close(const std::string& op, const ir::Attrs& attrs, const std::vector<Tensor>& in) {
  std::vector<Tensor> exact;
  for (const Tensor& t : in) exact.push_back(testing::in_double(t));
  const Tensor want = testing::run(op, exact, attrs)[0];
  const auto first = tests::run_kernels(op, attrs, in, 1, {0, 1}, 1);
  EXPECT_FALSE(first.empty()) << op;
  for (const int threads : {1, 2, 3, 4}) {
    const auto results = tests::run_kernels(op, attrs, in, 1, {0, 1}, threads);
    ASSERT_EQ(results.size(), first.size());
    for (size_t k = 0; k < results.size(); ++k) {
      SCOPED_TRACE(op + " " + results[k].kernel + ", threads " + std::to_string(threads));
      ASSERT_EQ(results[k].out[0].dims(), want.dims());
      EXPECT_LT(testing::largest_difference(results[k].out[0], want), 5e-6);
      EXPECT_EQ(std::memcmp(results[k].out[0].raw(), first[k].out[0].raw(),
                            static_cast<size_t>(want.elements()) * sizeof(float)),
                0);
    }
  }
}

TEST(ConvNhwcGrad, FastKernelsStayCloseToDouble) {
  for (const Layer& l : layers()) {
    SCOPED_TRACE(base::concat("n ", l.n, " ", l.h, "x", l.w, " c ", l.c, " oc ", l.oc, " k ", l.k, " s ",
                              l.stride, " pad ", l.pad, " g ", l.group, " d ", l.dilation));
    const ir::Attrs attrs = attrs_of(l);
    const int64_t reach = (l.k - 1) * l.dilation + 1;
    const int64_t oh = (l.h + 2 * l.pad - reach) / l.stride + 1,
                  ow = (l.w + 2 * l.pad - reach) / l.stride + 1;
    const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1);
    const Tensor w = tests::random_tensor({l.oc, l.c / l.group, l.k, l.k}, 2);
    const Tensor dy = tests::random_tensor({l.n, oh, ow, l.oc}, 3);
    expect_close("conv_nhwc", attrs, {x, w});
    ir::Attrs to_x = attrs;
    to_x.set("in_shape", Ints{l.h, l.w});
    expect_close("conv_nhwc_grad_x", to_x, {dy, w});
    ir::Attrs to_w = attrs;
    to_w.set("kernel_shape", Ints{l.k, l.k});
    expect_close("conv_nhwc_grad_w", to_w, {x, dy});
  }
}

/// Large depthwise kernels run forward in the form that inference has for them.
TEST(ConvNhwcGrad, LargeDepthwiseKernelsTrainOverLines) {
  for (const auto& [l, kernel] : {std::pair{Layer{2, 14, 13, 48, 48, 7, 1, 3, 48}, "depthwise_lines_live"},
                                  std::pair{Layer{2, 14, 13, 48, 48, 3, 2, 1, 48}, "depthwise_live"}}) {
    const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1);
    const Tensor w = tests::random_tensor({l.oc, 1, l.k, l.k}, 2);
    expect_close("conv_nhwc", attrs_of(l), {x, w});
    EXPECT_EQ(tests::run_kernels("conv_nhwc", attrs_of(l), {x, w}, 1, {0, 1})[0].kernel, kernel);
  }
}

/// Neither of one group nor of several: planning takes time for each pair of remainders modulo the strides.
TEST(ConvNhwcGrad, PhasesOfVeryLargeStridesAreNotWalked) {
  const Tensor dy = tests::random_tensor({1, 1, 1, 4}, 1);
  for (const int64_t group : {1, 2}) {
    const ir::Attrs attrs{{"strides", Ints{3000, 3000}}, {"in_shape", Ints{1, 1}}, {"group", group}};
    const Tensor w = tests::random_tensor({4, 4 / group, 1, 1}, 2);
    EXPECT_TRUE(tests::run_kernels("conv_nhwc_grad_x", attrs, {dy, w}, 1, {0, 1}).empty()) << group;
    EXPECT_EQ(testing::run("conv_nhwc_grad_x", {dy, w}, attrs)[0].dims(), (Dims{1, 1, 1, 4})) << group;
  }
}

TEST(ConvNhwcGrad, LinesSumTheGradientToo) {
  for (const Layer& l : {Layer{3, 30, 31, 1, 32, 3, 1, 0}, Layer{2, 17, 19, 3, 40, 3, 2, 1}}) {
    ir::Attrs attrs = attrs_of(l);
    attrs.set("kernel_shape", Ints{l.k, l.k});
    const int64_t oh = (l.h + 2 * l.pad - l.k) / l.stride + 1, ow = (l.w + 2 * l.pad - l.k) / l.stride + 1;
    const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1);
    const Tensor dy = tests::random_tensor({l.n, oh, ow, l.oc}, 3);
    const std::vector<Tensor> want =
        testing::run("conv_nhwc_grad_w", {testing::in_double(x), testing::in_double(dy)}, attrs, 2);
    const Tensor alone = tests::run_kernels("conv_nhwc_grad_w", attrs, {x, dy}, 1, {0, 1}, 1)[0].out[0];
    for (const int threads : {1, 2, 4}) {
      const auto got = tests::run_kernels("conv_nhwc_grad_w", attrs, {x, dy}, 2, {0, 1}, threads);
      ASSERT_EQ(got.size(), 1u);
      EXPECT_EQ(got[0].kernel, "lines");
      EXPECT_LT(testing::largest_difference(got[0].out[0], want[0]), 5e-6);
      EXPECT_LT(testing::largest_difference(got[0].out[1], want[1]), 5e-6);
      EXPECT_EQ(std::memcmp(got[0].out[0].raw(), alone.raw(), static_cast<size_t>(alone.elements()) * 4), 0);
    }
  }
}

Tensor half(const Tensor& t) {
  Tensor out = Tensor::empty(DType::bf16, t.dims());
  const std::vector<double> values = t.to_doubles();
  std::transform(values.begin(), values.end(), out.mutable_data<tensor::BFloat16>().begin(),
                 [](double v) { return tensor::BFloat16(static_cast<float>(v)); });
  return out;
}

TEST(ConvNhwcGrad, HalfPrecisionRunsThroughTheFastKernels) {
  const Tensor x = half(tests::random_tensor({2, 8, 9, 16}, 1)),
               w = half(tests::random_tensor({24, 16, 3, 3}, 2));
  const Tensor dy = half(tests::random_tensor({2, 8, 9, 24}, 3));
  ir::Attrs attrs{{"pads", Ints{1, 1, 1, 1}}, {"in_shape", Ints{8, 9}}, {"kernel_shape", Ints{3, 3}}};
  const std::pair<const char*, std::vector<Tensor>> cases[] = {
      {"conv_nhwc", {x, w}}, {"conv_nhwc_grad_x", {dy, w}}, {"conv_nhwc_grad_w", {x, dy}}};
  for (const auto& [op, in] : cases) {
    const auto got = tests::run_kernels(op, attrs, in, 1, {0, 1});
    ASSERT_FALSE(got.empty()) << op;
    const Tensor want = testing::run(op, {testing::in_double(in[0]), testing::in_double(in[1])}, attrs)[0];
    for (const auto& result : got)
      EXPECT_LT(testing::largest_difference(result.out[0], want), 4e-3) << op << " " << result.kernel;
  }
}

TEST(ConvNhwcGrad, FirstLayersReadPlanes) {
  for (const Layer& l : {Layer{2, 17, 19, 3, 64, 7, 2, 3}, Layer{3, 30, 31, 1, 12, 5, 1, 2},
                         Layer{3, 32, 48, 3, 200, 16, 16, 0}, Layer{1, 9, 9, 20, 24, 3, 1, 1},
                         Layer{2, 70, 70, 2, 150, 3, 2, 1}, Layer{2, 67, 64, 3, 40, 32, 32, 0},
                         Layer{2, 33, 30, 3, 40, 7, 4, 3}}) {
    ir::Attrs attrs = attrs_of(l);
    attrs.set("input_layout", std::string("nchw"));
    const int64_t oh = (l.h + 2 * l.pad - l.k) / l.stride + 1, ow = (l.w + 2 * l.pad - l.k) / l.stride + 1;
    const Tensor x = tests::random_tensor({l.n, l.c, l.h, l.w}, 1);
    const Tensor w = tests::random_tensor({l.oc, l.c, l.k, l.k}, 2);
    expect_close("conv_nhwc", attrs, {x, w});
    attrs.set("kernel_shape", Ints{l.k, l.k});
    expect_close("conv_nhwc_grad_w", attrs, {x, tests::random_tensor({l.n, oh, ow, l.oc}, 3)});
  }
}

}  // namespace
}  // namespace trireme::ops
