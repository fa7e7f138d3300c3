// A graph with many nodes that others must wait for is divided once: every node lies in one part.
#include "lower/segments.h"

#include <gtest/gtest.h>

#include "ops/table.h"

namespace trireme::lower {
namespace {

using ir::ValueId;
using tensor::DType;

/// if(condition, x) with the branches relu and neg.
ValueId either_of(ir::Graph& g, ValueId condition, ValueId x) {
  const auto branch = [&](const char* op) {
    ir::Graph b;
    const ValueId in = b.add_input("a", g.type(x));
    b.add_output(b.add1(ops::table().need(op), {in}), "r");
    return std::make_shared<const ir::Graph>(std::move(b));
  };
  ir::Attrs attrs{{"captures", int64_t{1}}};
  attrs.set("then_branch", branch("relu"));
  attrs.set("else_branch", branch("neg"));
  return g.add1(ops::table().need("if"), {condition, x}, attrs);
}

size_t nodes_in(const Segments& cut) {
  size_t nodes = cut.ready.nodes().size() + cut.frontier.size();
  for (const LaterPart& part : cut.rest) nodes += part.graph.nodes().size();
  return nodes;
}

TEST(Segments, EveryNodeOfAChainLiesInOnePart) {
  constexpr size_t kLinks = 500;
  ir::Graph g;
  const ValueId condition = g.add_input("c", {DType::boolean, {}});
  ValueId x = g.add_input("x", {DType::f32, {4}});
  const ValueId early = g.add1(ops::table().need("exp"), {x});
  for (size_t i = 0; i < kLinks; ++i) x = g.add1(ops::table().need("sqrt"), {either_of(g, condition, x)});
  g.add_output(g.add1(ops::table().need("add"), {x, early}), "y");
  g.add_output(early, "early");
  const Segments cut = cut_segments(g);
  EXPECT_FALSE(cut.complete);
  EXPECT_EQ(cut.frontier.size(), 1u);
  ASSERT_EQ(cut.rest.size(), kLinks);
  EXPECT_EQ(nodes_in(cut), g.nodes().size());
  EXPECT_EQ(cut.ready_outputs, std::vector<ValueId>{early});
  // Each part hands on what it computes and nothing that passes by.
  for (const LaterPart& part : cut.rest) EXPECT_EQ(part.outputs.size(), 1u);
  EXPECT_EQ(cut.rest[0].graph.nodes().size(), 2u);
  EXPECT_EQ(cut.rest.back().inputs.size(), 2u);
}

/// Which nodes wait for a shape that is not known yet shows when their part is bound.
TEST(Segments, UnknownShapesAreLeftToTheirPart) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4}});
  const ValueId where = g.add1(ops::table().need("non_zero"), {x});
  ValueId v = g.add1(ops::table().need("cast"), {where}, {{"to", int64_t{1}}});
  for (int i = 0; i < 5; ++i) v = g.add1(ops::table().need("exp"), {v});
  g.add_output(v, "y");
  const Segments cut = cut_segments(g);
  EXPECT_EQ(cut.frontier.size(), 1u);
  ASSERT_EQ(cut.rest.size(), 1u);
  EXPECT_EQ(cut.rest[0].graph.nodes().size(), 6u);
}

}  // namespace
}  // namespace trireme::lower
