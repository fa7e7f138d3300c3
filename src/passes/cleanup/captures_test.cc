// Tests that branches and bodies read constants of their own, and only those. The text of a graph holds no
// subgraphs, so there is no golden file (tests/golden_passes_test.cc).
#include "passes/cleanup/captures.h"

#include <gtest/gtest.h>

#include <memory>

#include "ir/graph.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

ir::GraphPtr scaled_branch() {
  return std::make_shared<const ir::Graph>(ir::parse(R"(graph "branch"
  %0 = input "x" : f32[2]
  %1 = input "scale" : f32[2]
  %2 = mul(%0, %1)
  return %2
)",
                                                     ops::table()));
}

/// if (c) x * scale else x * scale, where `scale` is a constant or an input.
ir::Graph with_branches(bool is_constant) {
  ir::Graph outer;
  const ir::ValueId condition = outer.add_input("c", {DType::boolean, Shape{}});
  const ir::ValueId x = outer.add_input("x", {DType::f32, Shape{2}});
  const ir::ValueId scale = is_constant ? outer.add_constant(Tensor::from<float>({2}, {3, 5}))
                                        : outer.add_input("scale", {DType::f32, Shape{2}});
  ir::Attrs attrs{{"captures", int64_t{2}}};
  attrs.set("then_branch", scaled_branch());
  attrs.set("else_branch", scaled_branch());
  outer.add_output(outer.add1(ops::table().need("if"), {condition, x, scale}, attrs), "y");
  return outer;
}

const ir::Graph& branch_of(const ir::Graph& outer, const char* name) {
  for (const ir::Node& node : outer.nodes()) {
    if (node.op_name() == "if") return *node.attrs.get_graph(name);
  }
  throw base::Error(base::ErrorCode::internal, "no branches");
}

TEST(Captures, BranchesReadConstantsOfTheirOwn) {
  ir::Graph graph = with_branches(true);
  EXPECT_EQ(bind_captures(graph), 2u);
  for (const char* name : {"then_branch", "else_branch"}) {
    const ir::Graph& branch = branch_of(graph, name);
    ASSERT_EQ(branch.inputs().size(), 2u);  // inputs stay where they are, unread
    const ir::Node* product = branch.producer(branch.outputs()[0]);
    ASSERT_NE(product, nullptr);
    EXPECT_EQ(product->in[0], branch.inputs()[0]);
    const Tensor* scale = branch.known(product->in[1]);
    ASSERT_NE(scale, nullptr);
    EXPECT_EQ(scale->to_doubles(), (std::vector<double>{3, 5}));
  }
  EXPECT_EQ(bind_captures(graph), 0u) << "there is nothing left to do";
}

TEST(Captures, WhatChangesFromRunToRunStaysAnInput) {
  ir::Graph graph = with_branches(false);
  EXPECT_EQ(bind_captures(graph), 0u);
  const ir::Graph& branch = branch_of(graph, "then_branch");
  EXPECT_EQ(branch.producer(branch.outputs()[0])->in[1], branch.inputs()[1]);
}

}  // namespace
}  // namespace trireme::passes
