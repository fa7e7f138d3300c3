// Max pools fused into the convolutions before them: what is fused, what is not, and equal results.
#include "passes/fuse/pooled_convs.h"

#include <cstring>

#include "ops/test_grad.h"
#include "passes/fuse/conv_bias_sums.h"
#include "passes/test_counts.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

/// A convolution with its pool and all gradients, as earlier passes leave them.
struct Step {
  ir::Graph g;
  ValueId x = g.add_input("x", {DType::f32, {2, 10, 12, 16}});
  ValueId w = g.add_input("w", {DType::f32, {24, 16, 3, 3}});
  ValueId b = g.add_input("b", {DType::f32, {24}});
  ValueId dp = g.add_input("dp", {DType::f32, {2, 4, 5, 24}});
  ir::Attrs window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  ValueId y{}, dy{};

  ValueId op(const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return g.add1(ops::table().need(name), std::move(in), std::move(attrs));
  }

  void forward() {
    y = op("conv_nhwc", {x, w, b}, {{"activation", std::string("relu")}});
    g.add_output(op("max_pool_nhwc", {y}, window), "p");
  }

  void backward() {
    ir::Attrs back = window;
    back.set("rectified", int64_t{1});
    dy = op("max_pool_nhwc_grad", {y, dp}, back);
    const ValueId dx = op("conv_nhwc_grad_x", {dy, w}, {{"in_shape", Ints{10, 12}}});
    g.add_output(op("relu_grad", {dx, x}), "dx");
    g.add_output(op("conv_nhwc_grad_w", {x, dy}, {{"kernel_shape", Ints{3, 3}}}), "dw");
    const ValueId axes = g.add_constant(ops::testing::ints({0, 1, 2}));
    g.add_output(op("reduce_sum", {dy, axes}, {{"keepdims", int64_t{0}}}), "db");
  }
};

size_t fuse(ir::Graph& g) {
  const size_t changes = fuse_pooled_convs(g);
  g.sort();
  ir::verify(g);
  return changes;
}

TEST(PooledConvs, SixNodesBecomeTwoAndKeepTheirBits) {
  Step s;
  s.forward();
  s.backward();
  ir::Graph after = s.g;
  EXPECT_EQ(fuse(after), 1u);
  EXPECT_EQ(after.nodes().size(), 2u);
  std::vector<Tensor> inputs;
  for (ValueId id : s.g.inputs())
    inputs.push_back(ops::testing::random_tensor(DType::f32, s.g.type(id).shape.to_dims(), -1, 1, 5));
  const auto want = ops::testing::run_graph(s.g, inputs), got = ops::testing::run_graph(after, inputs);
  ASSERT_EQ(want.size(), 4u);
  for (size_t o = 0; o < 3; ++o) {
    const auto a = want[o].data<float>(), b = got[o].data<float>();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "output " << o << " at " << i;
  }
  const auto a = want[3].data<float>(), b = got[3].data<float>();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << i;
}

TEST(PooledConvs, GradientsThatNobodyReadsAreLeftOut) {
  Step s;
  s.forward();
  ir::Attrs back = s.window;
  back.set("rectified", int64_t{1});
  s.dy = s.op("max_pool_nhwc_grad", {s.y, s.dp}, back);
  s.g.add_output(s.op("conv_nhwc_grad_w", {s.x, s.dy}, {{"kernel_shape", Ints{3, 3}}}), "dw");
  ir::Graph after = s.g;
  EXPECT_EQ(fuse(after), 1u);
  std::vector<Tensor> inputs;
  for (ValueId id : s.g.inputs())
    inputs.push_back(ops::testing::random_tensor(DType::f32, s.g.type(id).shape.to_dims(), -1, 1, 5));
  const auto want = ops::testing::run_graph(s.g, inputs), got = ops::testing::run_graph(after, inputs);
  for (size_t o = 0; o < 2; ++o) EXPECT_TRUE(want[o].same_as(got[o])) << o;
}

TEST(PooledConvs, AnImageThatOthersReadStays) {
  Step s;
  s.forward();
  s.backward();
  s.g.add_output(s.op("relu", {s.y}), "again");
  EXPECT_EQ(fuse(s.g), 0u);
  Step t;
  t.forward();
  t.backward();
  t.g.add_output(t.op("relu", {t.dy}), "again");
  EXPECT_EQ(fuse(t.g), 0u);
}

TEST(PooledConvs, OverlappingWindowsStay) {
  Step s;
  s.dp = s.g.add_input("d", {DType::f32, {2, 7, 9, 24}});
  s.window.set("strides", Ints{1, 1});
  s.forward();
  s.backward();
  EXPECT_EQ(fuse(s.g), 0u);
  EXPECT_EQ(count(s.g, "conv_nhwc"), 1u);
}

TEST(PooledConvs, ConvolutionsThatNoKernelTakesStay) {
  Step s;
  s.x = s.g.add_input("wide", {DType::f64, {2, 10, 12, 16}});
  s.w = s.g.add_input("wide_w", {DType::f64, {24, 16, 3, 3}});
  s.b = s.g.add_input("wide_b", {DType::f64, {24}});
  s.dp = s.g.add_input("wide_dp", {DType::f64, {2, 4, 5, 24}});
  s.forward();
  s.backward();
  EXPECT_EQ(fuse(s.g), 0u);
}

TEST(ConvBiasSums, OneNodeGivesBothGradients) {
  for (const int64_t channels : {1, 16}) {  // the Winograd kernel, used for 16 channels, does not sum
    ir::Graph g;
    const ValueId x = g.add_input("x", {DType::f32, {2, 9, 10, channels}});
    const ValueId dy = g.add_input("dy", {DType::f32, {2, 7, 8, 24}});
    const auto op = [&](const char* name, std::vector<ValueId> in, ir::Attrs attrs) {
      return g.add1(ops::table().need(name), std::move(in), std::move(attrs));
    };
    g.add_output(op("conv_nhwc_grad_w", {x, dy}, {{"kernel_shape", Ints{3, 3}}}), "dw");
    const ValueId axes = g.add_constant(ops::testing::ints({0, 1, 2}));
    g.add_output(op("reduce_sum", {dy, axes}, {{"keepdims", int64_t{0}}}), "db");
    ir::Graph after = g;
    EXPECT_EQ(fuse_conv_bias_sums(after), channels == 1 ? 1u : 0u);
    after.sort();
    ir::verify(after);
    EXPECT_EQ(count(after, "reduce_sum"), channels == 1 ? 0u : 1u);
    std::vector<Tensor> inputs;
    for (ValueId id : g.inputs())
      inputs.push_back(ops::testing::random_tensor(DType::f32, g.type(id).shape.to_dims(), -1, 1, 5));
    const auto want = ops::testing::run_graph(g, inputs), got = ops::testing::run_graph(after, inputs);
    for (size_t o = 0; o < 2; ++o) {
      const auto a = want[o].data<float>(), b = got[o].data<float>();
      for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4) << o << " " << i;
    }
  }
}

}  // namespace
}  // namespace trireme::passes
