// ReLUs and residuals fused into training batch norms: what is fused, what is not, and equal results.
#include "passes/fuse/train_norms.h"

#include "ops/test_grad.h"
#include "passes/test_counts.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kChannels = 5;

/// Adds bn(x) with new constants; returns its first result. The variance becomes an output.
ValueId norm(ir::Graph& g, ValueId x, uint64_t seed) {
  const ValueId scale = g.add_constant(ops::testing::random_tensor(DType::f64, {kChannels}, 0.5, 2, seed));
  const ValueId bias = g.add_constant(ops::testing::random_tensor(DType::f64, {kChannels}, -1, 1, seed + 1));
  const auto out = g.add(ops::table().need("batch_norm_train"), {x, scale, bias}, {{"axis", int64_t{-1}}}, 4);
  g.add_output(out[3], "variance" + std::to_string(seed));
  return out[0];
}

ValueId op(ir::Graph& g, const std::string& name, std::vector<ValueId> in) {
  return g.add1(ops::table().need(name), std::move(in));
}

/// The outputs of the graph, and the gradient of the sum of its last output with respect to its inputs.
std::vector<Tensor> with_gradients(ir::Graph g, const std::vector<Tensor>& inputs) {
  std::vector<char> wanted(g.values().size(), 0);
  for (ValueId id : g.inputs()) wanted[ir::index(id)] = 1;
  const ValueId y = g.outputs().back();
  std::vector<ValueId> grads(g.values().size(), ir::kNoValue);
  grads[ir::index(y)] =
      g.add_constant(ops::testing::random_tensor(DType::f64, g.type(y).shape.to_dims(), -1, 1, 9));
  grads.resize(g.values().size(), ir::kNoValue);
  ops::backpropagate(g, 0, wanted, grads);
  for (ValueId id : g.inputs()) g.add_output(grads[ir::index(id)], "d" + g.value(id).name);
  g.sort();
  return ops::testing::run_graph(g, inputs);
}

void expect_equal(const ir::Graph& before, const ir::Graph& after) {
  std::vector<Tensor> inputs;
  for (ValueId id : before.inputs()) {
    inputs.push_back(ops::testing::random_tensor(DType::f64, before.type(id).shape.to_dims(), -2, 2, 5));
  }
  const auto want = with_gradients(before, inputs), got = with_gradients(after, inputs);
  ASSERT_EQ(want.size(), got.size());
  for (size_t o = 0; o < want.size(); ++o) {
    for (size_t i = 0; i < want[o].data<double>().size(); ++i) {
      ASSERT_NEAR(want[o].data<double>()[i], got[o].data<double>()[i], 1e-12) << "output " << o;
    }
  }
}

ir::Graph fused(const ir::Graph& before, size_t changes) {
  ir::Graph after = before;
  EXPECT_EQ(fuse_train_norms(after), changes);
  after.sort();
  ir::verify(after);
  return after;
}

struct Inputs {
  ir::Graph g;
  ValueId x = g.add_input("x", {DType::f64, {3, 4, kChannels}});
};

TEST(FuseTrainNorms, TakesTheRectifier) {
  Inputs n;
  n.g.add_output(op(n.g, "relu", {norm(n.g, n.x, 1)}), "y");
  const ir::Graph after = fused(n.g, 1);
  EXPECT_EQ(count(after, "relu"), 0u);
  expect_equal(n.g, after);
}

TEST(FuseTrainNorms, TakesTheResidualOfABasicBlock) {
  Inputs n;
  const ValueId inner = op(n.g, "relu", {norm(n.g, n.x, 1)});
  n.g.add_output(op(n.g, "relu", {op(n.g, "add", {norm(n.g, op(n.g, "tanh", {inner}), 3), n.x})}), "y");
  const ir::Graph after = fused(n.g, 2);
  EXPECT_EQ(count(after, "relu") + count(after, "add"), 0u);
  EXPECT_EQ(count(after, "batch_norm_train"), 2u);
  expect_equal(n.g, after);
}

TEST(FuseTrainNorms, OneOfTwoNormsTakesTheOtherAsResidual) {
  Inputs n;
  const ValueId shortcut = norm(n.g, op(n.g, "sin", {n.x}), 3);
  n.g.add_output(op(n.g, "relu", {op(n.g, "add", {norm(n.g, n.x, 1), shortcut})}), "y");
  const ir::Graph after = fused(n.g, 1);
  EXPECT_EQ(count(after, "relu") + count(after, "add"), 0u);
  expect_equal(n.g, after);
}

TEST(FuseTrainNorms, ASumWithoutRectifierIsTakenToo) {
  Inputs n;
  n.g.add_output(op(n.g, "add", {n.x, norm(n.g, n.x, 1)}), "y");
  const ir::Graph after = fused(n.g, 1);
  EXPECT_EQ(count(after, "add"), 0u);
  expect_equal(n.g, after);
}

TEST(FuseTrainNorms, LeavesWhatIsReadElsewhereOrBroadcast) {
  Inputs n;
  const ValueId bare = norm(n.g, n.x, 1);
  n.g.add_output(bare, "bare");
  n.g.add_output(op(n.g, "relu", {bare}), "y");
  fused(n.g, 0);
  Inputs b;
  const ValueId row = b.g.add_constant(ops::testing::random_tensor(DType::f64, {kChannels}, -1, 1));
  b.g.add_output(op(b.g, "add", {norm(b.g, b.x, 1), row}), "y");
  fused(b.g, 0);
}

TEST(FuseNormGradientSums, AResidualAroundANormCostsNoSumOfItsOwn) {
  for (const std::string kind : {"layer_norm", "rms_norm"}) {
    ir::Graph g;
    const ValueId x = g.add_input("x", {DType::f64, {4, 6}}), dy = g.add_input("dy", {DType::f64, {4, 6}});
    const ValueId scale = g.add_constant(ops::testing::random_tensor(DType::f64, {6}, 0.5, 2, 1));
    const auto grads = g.add(ops::table().need(kind + "_grad"), {dy, x, scale}, {}, 2);
    g.add_output(op(g, "add", {dy, grads[0]}), "dx");
    g.add_output(grads[1], "dscale");
    ir::Graph after = g;
    EXPECT_EQ(fuse_norm_gradient_sums(after), 1u);
    after.sort();
    ir::verify(after);
    EXPECT_EQ(count(after, "add"), 0u);
    const std::vector<Tensor> in{ops::testing::random_tensor(DType::f64, {4, 6}, -1, 1, 2),
                                 ops::testing::random_tensor(DType::f64, {4, 6}, -1, 1, 3)};
    const auto want = ops::testing::run_graph(g, in), got = ops::testing::run_graph(after, in);
    for (size_t o = 0; o < 2; ++o) {
      for (size_t i = 0; i < want[o].data<double>().size(); ++i)
        EXPECT_NEAR(want[o].data<double>()[i], got[o].data<double>()[i], 1e-12);
    }
  }
}

TEST(FuseNormGradientSums, TwoBranchesReachTheBatchNormOfABlock) {
  Inputs n;
  const ValueId y = op(n.g, "relu", {op(n.g, "add", {norm(n.g, op(n.g, "tanh", {n.x}), 1), n.x})});
  n.g.add_output(op(n.g, "mul", {op(n.g, "sin", {y}), op(n.g, "tanh", {y})}), "z");
  fuse_train_norms(n.g);
  n.g.sort();
  std::vector<char> wanted(n.g.values().size(), 0);
  wanted[ir::index(n.g.inputs()[0])] = 1;
  std::vector<ValueId> grads(n.g.values().size(), ir::kNoValue);
  const ValueId z = n.g.outputs().back();
  const ValueId seed = n.g.add_constant(ops::testing::random_tensor(DType::f64, {3, 4, kChannels}, -1, 1, 9));
  grads[ir::index(z)] = seed;
  ops::backpropagate(n.g, 0, wanted, grads);
  n.g.add_output(grads[ir::index(n.g.inputs()[0])], "dx");
  n.g.sort();
  ir::Graph after = n.g;
  EXPECT_GE(fuse_norm_gradient_sums(after), 1u);
  after.sort();
  ir::verify(after);
  EXPECT_EQ(count(after, "add") + 1, count(n.g, "add"));
  const std::vector<Tensor> in{ops::testing::random_tensor(DType::f64, {3, 4, kChannels}, -2, 2, 5)};
  const auto want = ops::testing::run_graph(n.g, in), got = ops::testing::run_graph(after, in);
  for (size_t i = 0; i < want.back().data<double>().size(); ++i)
    EXPECT_NEAR(want.back().data<double>()[i], got.back().data<double>()[i], 1e-12);
}

TEST(FuseNormGradientSums, LeavesAGradientThatIsReadTwice) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f64, {4, 6}});
  const ValueId dx = g.add(ops::table().need("layer_norm_grad"), {x, x}, {}, 1)[0];
  g.add_output(op(g, "add", {dx, x}), "sum");
  g.add_output(dx, "dx");
  EXPECT_EQ(fuse_norm_gradient_sums(g), 0u);
}

}  // namespace
}  // namespace trireme::passes
