// Recomputation: clones for backward readers, cuts of a chain, and the results of the unchanged graph.
#include "passes/train/recompute.h"

#include <gtest/gtest.h>

#include "ops/test_grad.h"
#include "passes/train/train.h"

namespace trireme::passes {
namespace {

using ops::testing::random_tensor;
using ops::testing::run_graph;
using tensor::DType;
using tensor::Tensor;

/// A chain of products and tanh with a hand-written backward pass: y_i = tanh(y_{i-1} w), d_{i-1} = (d_i (1 -
/// y_i^2)) w'. `more`: nodes before it that it does not depend on.
ir::Graph chain(size_t layers, size_t more = 0) {
  ir::Graph g;
  const ir::OpTable& ops = ops::table();
  const auto add = [&](const char* op, std::vector<ir::ValueId> in) {
    return g.add1(ops.need(op), std::move(in));
  };
  ir::ValueId y = g.add_input("x", {DType::f64, {8, 8}});
  const ir::ValueId weight = g.add_input(kLossWeightInput, {DType::f64, tensor::Shape{}});
  const ir::ValueId w = g.add_constant(random_tensor(DType::f64, {8, 8}, -0.5, 0.5));
  for (size_t i = 0; i < more; ++i) g.add_output(add("neg", {y}), base::concat("more", i));
  std::vector<ir::ValueId> ys;
  for (size_t i = 0; i < layers; ++i) ys.push_back(y = add("tanh", {add("matmul", {y, w})}));
  g.add_output(y, "loss");
  ir::ValueId d = add("mul", {y, weight});
  const ir::ValueId one = g.add_constant(Tensor::scalar<double>(1));
  for (size_t i = layers; i-- > 0;) {
    const ir::ValueId slope = add("sub", {one, add("mul", {ys[i], ys[i]})});
    d = add("matmul", {add("mul", {d, slope}), w});
  }
  g.add_output(d, "dx");
  g.sort();
  return g;
}

TEST(Recompute, FullKeepsOnlyCuts) {
  const ir::Graph plain = chain(16);
  const RecomputePlan none = plan_recompute(plain, RecomputeMode::none);
  const RecomputePlan full = plan_recompute(plain, RecomputeMode::full);
  EXPECT_EQ(none.kept_bytes, 16 * 512);
  EXPECT_LE(full.kept_bytes, 8 * 512);
  EXPECT_GT(full.flop, 0);
  EXPECT_GE(count_cuts(plain), 15u);
}

TEST(Recompute, GivesTheSameBits) {
  const ir::Graph plain = chain(12);
  const std::vector<Tensor> feeds{random_tensor(DType::f64, {8, 8}, -1, 1, 5), Tensor::scalar<double>(0.5)};
  const Tensor want = run_graph(plain, feeds)[1];
  for (RecomputeMode mode : {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full}) {
    ir::Graph graph = plain;
    const size_t clones = recompute(graph, plan_recompute(graph, mode));
    graph.sort();
    ir::verify(graph);
    EXPECT_EQ(clones > 0, mode != RecomputeMode::none) << to_string(mode);
    EXPECT_TRUE(run_graph(graph, feeds)[1].same_as(want)) << to_string(mode);
  }
}

TEST(Recompute, APlanHoldsForTheSameNodesAtOtherIndices) {
  const RecomputePlan plan = plan_recompute(chain(12), RecomputeMode::full);
  ir::Graph same = chain(12), shifted = chain(12, 3);
  ASSERT_NE(shifted.nodes()[0].op->schema.name, same.nodes()[0].op->schema.name);
  const size_t clones = recompute(same, plan);
  EXPECT_GT(clones, 0u);
  EXPECT_EQ(recompute(shifted, plan), clones);
}

TEST(Recompute, RunsClonesBesideTheirReaders) {
  ir::Graph graph = chain(8);
  const size_t forward_nodes = 16;
  recompute(graph, plan_recompute(graph, RecomputeMode::full, 2));
  graph.sort();
  // The clones of the first half run after the backward pass of the second half has begun.
  size_t backward_seen = 0;
  for (size_t n = forward_nodes; n < graph.nodes().size() && graph.nodes()[n].op_name() != "tanh"; ++n)
    ++backward_seen;
  EXPECT_GT(backward_seen, 8u);
}

}  // namespace
}  // namespace trireme::passes
