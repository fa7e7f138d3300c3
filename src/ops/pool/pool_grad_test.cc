// Gradients of pooling against finite differences in double.
#include <algorithm>
#include <random>

#include "ops/test_grad.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::expect_gradient;
using testing::random_tensor;

/// Distinct values at least 0.05 apart, so that the steps of finite differences do not change a maximum.
Tensor spread_tensor(const tensor::Dims& dims) {
  Tensor t = Tensor::empty(DType::f64, dims);
  const auto x = t.mutable_data<double>();
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.05 * static_cast<double>(i) - 1;
  std::mt19937 engine(7);
  std::shuffle(x.begin(), x.end(), engine);
  return t;
}

using Ints = std::vector<int64_t>;

const std::vector<ir::Attrs>& windows() {
  static const std::vector<ir::Attrs> all = {
      {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}},
      {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{1, 2}}},
      {{"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 0, 1}}},
      {{"kernel_shape", Ints{2, 2}}, {"auto_pad", std::string("SAME_UPPER")}},
      {{"kernel_shape", Ints{3, 2}}, {"strides", Ints{3, 2}}},
  };
  return all;
}

TEST(PoolGrad, MaxAverageAndLpWindows) {
  for (const ir::Attrs& window : windows()) {
    const Tensor x = spread_tensor({2, 3, 5, 6});
    expect_gradient({.op = "max_pool", .in = {x}, .attrs = window});
    expect_gradient({.op = "max_pool", .in = {x}, .attrs = window, .results = 2});
    for (const int64_t include : {0, 1}) {
      ir::Attrs attrs = window;
      attrs.set("count_include_pad", include);
      expect_gradient({.op = "average_pool", .in = {x}, .attrs = attrs});
    }
    for (const int64_t p : {1, 2, 3}) {
      ir::Attrs attrs = window;
      attrs.set("p", p);
      expect_gradient({.op = "lp_pool", .in = {x}, .attrs = attrs});
    }
  }
  ir::Attrs ceil{{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"ceil_mode", int64_t{1}}};
  expect_gradient({.op = "max_pool", .in = {spread_tensor({1, 2, 6})}, .attrs = ceil});
  expect_gradient({.op = "average_pool", .in = {spread_tensor({1, 2, 6})}, .attrs = ceil});
}

TEST(PoolGrad, ChannelsLast) {
  for (const ir::Attrs& window : windows()) {
    const Tensor x = spread_tensor({2, 5, 6, 3});
    expect_gradient({.op = "max_pool_nhwc", .in = {x}, .attrs = window});
    for (const int64_t include : {0, 1}) {
      ir::Attrs attrs = window;
      attrs.set("count_include_pad", include);
      expect_gradient({.op = "average_pool_nhwc", .in = {x}, .attrs = attrs});
    }
  }
  expect_gradient({.op = "global_average_pool_nhwc", .in = {spread_tensor({2, 4, 3, 5})}});
}

TEST(PoolGrad, FastKernelsGiveTheBitsOfThePlainWalk) {
  for (const ir::Attrs& window : windows()) {
    for (const int64_t c : {3, 16, 70}) {
      Tensor x = tests::random_tensor({2, 9, 10, c}, 1);
      // Equal values are common after a ReLU.
      for (float& v : x.mutable_data<float>()) v = std::max(v, 0.0f);
      const auto forward = testing::run("max_pool_nhwc", {x}, window);
      const Tensor dy = tests::random_tensor(forward[0].dims(), 2);
      const Tensor want = tests::run_expanded("max_pool_nhwc_grad", window, {x, dy})[0];
      ir::Attrs behind_relu = window;
      behind_relu.set("rectified", int64_t{1});
      const Tensor rectified = testing::run("relu_grad", {want, x})[0];
      for (const int threads : {1, 2, 3, 4}) {
        const auto got = tests::run_kernels("max_pool_nhwc_grad", window, {x, dy}, 1, {0, 1}, threads);
        ASSERT_EQ(got.size(), 1u);
        EXPECT_TRUE(got[0].out[0].same_as(want)) << c;
        const auto masked =
            tests::run_kernels("max_pool_nhwc_grad", behind_relu, {x, dy}, 1, {0, 1}, threads);
        EXPECT_TRUE(masked[0].out[0].same_as(rectified)) << c;
      }
      for (const int64_t include : {0, 1}) {
        ir::Attrs attrs = window;
        attrs.set("count_include_pad", include);
        attrs.set("in_shape", Ints{9, 10});
        const Tensor mean = tests::run_expanded("average_pool_nhwc_grad", attrs, {dy})[0];
        const auto got = tests::run_kernels("average_pool_nhwc_grad", attrs, {dy}, 1, {0});
        ASSERT_EQ(got.size(), 1u);
        const std::vector<double> a = got[0].out[0].to_doubles(), b = mean.to_doubles();
        for (size_t i = 0; i < b.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6);
      }
    }
  }
}

TEST(PoolGrad, WholePlanes) {
  const Tensor x = spread_tensor({2, 3, 4, 5});
  for (const char* op : {"global_average_pool", "global_max_pool", "global_lp_pool"})
    expect_gradient({.op = op, .in = {x}});
  expect_gradient({.op = "global_lp_pool", .in = {x}, .attrs = {{"p", int64_t{3}}}});
}

TEST(PoolGrad, EqualValuesGiveAllToTheFirst) {
  const Tensor x = Tensor::from<double>({1, 1, 2, 2}, std::vector<double>{3, 3, 3, 3});
  const Tensor dy = Tensor::from<double>({1, 1, 1, 1}, std::vector<double>{5});
  const Tensor dx = testing::run("max_pool_grad", {x, dy}, {{"kernel_shape", Ints{2, 2}}})[0];
  EXPECT_EQ(dx.to_doubles(), (std::vector<double>{5, 0, 0, 0}));
}

TEST(PoolGrad, UnpoolAndRegions) {
  const Tensor x = random_tensor(DType::f64, {1, 2, 2, 2}, -1, 1);
  const Tensor at = Tensor::from<int64_t>({1, 2, 2, 2}, std::vector<int64_t>{0, 3, 8, 15, 16, 19, 24, 31});
  expect_gradient(
      {.op = "max_unpool", .in = {x, at}, .attrs = {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}});
  const Tensor image = spread_tensor({2, 2, 6, 7});
  const Tensor regions =
      Tensor::from<double>({3, 4}, std::vector<double>{0.3, 0.2, 4.9, 5.1, 1, 2, 6, 4, 2, 1, 3, 3});
  const Tensor images = Tensor::from<int64_t>({3}, std::vector<int64_t>{0, 1, 0});
  for (const char* mode : {"avg", "max"}) {
    expect_gradient({.op = "roi_align",
                     .in = {image, regions, images},
                     .attrs = {{"mode", std::string(mode)},
                               {"output_height", int64_t{2}},
                               {"output_width", int64_t{3}},
                               {"sampling_ratio", int64_t{2}}},
                     .skip = {1}});
  }
}

}  // namespace
}  // namespace trireme::ops
