// Cuts of small graphs in text form: which values cross, what is recomputed, and which program gets which
// node.
#include "passes/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/table.h"
#include "ops/test_grad.h"

namespace trireme::passes {
namespace {

using tensor::DType;
using tensor::Tensor;

std::vector<std::string> inputs_of(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (ir::ValueId id : graph.inputs()) names.push_back(graph.value(id).name);
  return names;
}

size_t count(const ir::Graph& graph, std::string_view op) {
  return static_cast<size_t>(std::count_if(graph.nodes().begin(), graph.nodes().end(),
                                           [&](const ir::Node& n) { return n.op_name() == op; }));
}

using Names = std::vector<std::string>;

/// x -> a = x w0 -> b = (tanh a) w1 * mask -> c = b w2 * mask + a. The mask depends only on the input, and
/// `a` skips a part.
ir::Graph skipping() {
  ir::Graph g;
  g.name = "skipping";
  const auto add = [&](const char* op, std::vector<ir::ValueId> in) {
    return g.add1(ops::table().need(op), std::move(in));
  };
  const ir::ValueId x = g.add_input("x", {DType::f32, {4, 4}});
  const ir::ValueId limit = g.add_input("limit", {DType::f32, {4, 4}});
  std::vector<ir::ValueId> w;
  for (int i = 0; i < 3; ++i) w.push_back(g.add_state(base::concat("w", i), {DType::f32, {4, 4}}));
  const ir::ValueId mask = add("sigmoid", {limit});
  const ir::ValueId a = add("matmul", {x, w[0]});
  const ir::ValueId b = add("mul", {add("matmul", {add("tanh", {a}), w[1]}), mask});
  const ir::ValueId c = add("add", {add("mul", {add("matmul", {b, w[2]}), mask}), a});
  g.add_output(c, "y");
  g.sort();
  return g;
}

TEST(Pipeline, ValuesThatSkipAPartGoThroughIt) {
  const ir::Graph graph = skipping();
  const PipelineCut cut = plan_pipeline_cut(graph, 3);
  const PipelinePart first = cut_part(graph, cut, 0), middle = cut_part(graph, cut, 1),
                     last = cut_part(graph, cut, 2);
  EXPECT_EQ(inputs_of(first.graph), (Names{"x"}));
  EXPECT_EQ(middle.in, first.out);
  EXPECT_EQ(last.in, middle.out);
  EXPECT_EQ(last.in.size(), 2u);  // b and a
  EXPECT_EQ(last.graph.output_names(), (Names{"y"}));
  // The mask is recomputed from the input in the parts that read it.
  EXPECT_EQ(count(first.graph, "sigmoid"), 0u);
  EXPECT_EQ(count(middle.graph, "sigmoid") + count(last.graph, "sigmoid"), 2u);
  EXPECT_EQ(weights_of_parts(graph, cut), (std::vector<Names>{{"w0"}, {"w1"}, {"w2"}}));
}

TEST(Pipeline, GradientsArriveAndLeaveByName) {
  const ir::Graph graph = skipping();
  const PipelineCut cut = plan_pipeline_cut(graph, 3);
  PipelinePart middle = cut_part(graph, cut, 1);
  std::vector<ir::ValueId> wanted;
  for (size_t i = 0; i < middle.graph.values().size(); ++i) {
    const auto id = ir::ValueId(static_cast<uint32_t>(i));
    if (middle.graph.value(id).name == "w1") wanted.push_back(id);
  }
  const std::vector<ParamGradient> gradients = differentiate_part(middle, ir::kNoValue, wanted);
  ASSERT_EQ(gradients.size(), 1u);
  const ir::ValueId sum = middle.graph.add_state("w1.grad", {DType::f32, {4, 4}});
  const ir::ValueId number = need_input(middle.graph, kCountInput, {DType::i64, tensor::Shape{}});
  middle.graph.add1(ops::table().need("tree_accumulate"), {number, gradients[0].gradient, sum});
  middle.graph.sort();
  for (const std::string& name : middle.in) {
    EXPECT_TRUE(std::count(middle.graph.output_names().begin(), middle.graph.output_names().end(),
                           crossing_gradient(name)));
  }
  const PipelinePrograms plain = split_part(middle, false);
  EXPECT_TRUE(plain.weights.nodes().empty());
  EXPECT_EQ(count(plain.forward, "matmul"), 1u);
  EXPECT_EQ(count(plain.backward, "tree_accumulate"), 1u);
  const PipelinePrograms split = split_part(middle, true);
  EXPECT_EQ(count(split.forward, "matmul"), 1u);
  EXPECT_EQ(count(split.backward, "tree_accumulate"), 0u);
  EXPECT_EQ(count(split.weights, "tree_accumulate"), 1u);
  // One product each for the gradients of the input and of the weight.
  EXPECT_EQ(split.weights.nodes().size() + split.backward.nodes().size(), plain.backward.nodes().size());
}

TEST(Pipeline, TheLossOfTheLastPartMayHaveDimensions) {
  PipelinePart part{.graph = {}, .in = {}, .out = {}};
  ir::Graph& g = part.graph;
  const ir::ValueId x = g.add_input("x", {DType::f32, {1}}), w = g.add_state("w", {DType::f32, {1}});
  const ir::ValueId loss = g.add1(ops::table().need("add"), {g.add1(ops::table().need("mul"), {x, w}), w});
  g.add_output(loss, "loss_sum");
  const std::vector<ParamGradient> gradients = differentiate_part(part, loss, {w});
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_EQ(g.type(gradients[0].gradient).shape, (tensor::Shape{1}));
  EXPECT_EQ(g.type(g.outputs()[0]).shape.rank(), 0u);
}

TEST(Pipeline, ACutOfAnotherModelIsNoticed) {
  const ir::Graph graph = skipping();
  PipelineCut cut = plan_pipeline_cut(graph, 2);
  cut.begins[0].weight = "other";
  EXPECT_THROW(cut_part(graph, cut, 0), base::Error);
  EXPECT_THROW(plan_pipeline_cut(graph, 4), base::Error);
}

/// The value written into a state stays in the part of the state and never crosses a cut.
TEST(Pipeline, TheContentOfAStateStaysInItsPart) {
  ir::Graph g;
  const auto add = [&](const char* op, std::vector<ir::ValueId> in) {
    return g.add1(ops::table().need(op), std::move(in));
  };
  const auto state = [&](const char* name, tensor::Shape shape) {
    return g.add_state(name, {DType::f32, std::move(shape)});
  };
  const ir::ValueId x = g.add_input("x", {DType::f32, {1, 4, 8}});
  const ir::ValueId slots = g.add_input("slots", {DType::i32, {4}});
  const ir::ValueId k = add("matmul", {x, state("w0", {8, 8})});
  const ir::ValueId now =
      g.add(ops::table().need("kv_append"),
            {k, k, state("keys", {2, 1, 4, 8}), state("values", {2, 1, 4, 8}), slots}, {}, 2)[0];
  const ir::ValueId scaled = add("mul", {now, state("w1", {8})});
  g.add_output(add("matmul", {scaled, state("w2", {8, 8})}), "y");
  g.sort();
  const PipelineCut cut = plan_pipeline_cut(g, 3);
  for (size_t part = 0; part < 3; ++part) {
    const ir::Graph graph = cut_part(g, cut, part).graph;
    EXPECT_EQ(count(graph, "mul"), count(graph, "kv_append"));
  }
  EXPECT_THROW(plan_pipeline_cut(g, 4), base::Error);
  EXPECT_THROW(plan_pipeline_cut(g, 2, {"w1"}), base::Error);
}

}  // namespace
}  // namespace trireme::passes
