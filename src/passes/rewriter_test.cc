// Live readers are counted once for each node, however many results it has.
#include "passes/rewriter.h"

#include <gtest/gtest.h>

#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;

TEST(Rewriter, NodesLiveWhileOneResultIsRead) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {6}});
  const ValueId y = g.add1(ops::table().need("exp"), {x});
  const auto parts = g.add(ops::table().need("split"), {y}, {{"num_outputs", int64_t{3}}}, 3);
  const ValueId a = g.add1(ops::table().need("neg"), {parts[0]}),
                b = g.add1(ops::table().need("neg"), {parts[2]});
  g.add_output(a, "a");
  g.add_output(b, "b");
  Rewriter rw(g);
  EXPECT_EQ(rw.uses(y), 1u);
  EXPECT_EQ(rw.uses(parts[1]), 0u);
  const ValueId other = rw.constant(tensor::Tensor::zeros(DType::f32, {2}));
  rw.replace(a, other);
  EXPECT_EQ(rw.uses(parts[0]), 0u);
  EXPECT_EQ(rw.uses(y), 1u);
  rw.replace(b, other);
  EXPECT_EQ(rw.uses(parts[2]), 0u);
  EXPECT_EQ(rw.uses(y), 0u);
  EXPECT_EQ(rw.uses(x), 0u);
  rw.replace(other, parts[1]);  // the node lives again
  EXPECT_EQ(rw.uses(parts[1]), 4u);
  EXPECT_EQ(rw.uses(y), 1u);
  EXPECT_EQ(rw.uses(x), 1u);
}

/// A node of so many results that looking at all of them for each takes minutes.
TEST(Rewriter, NodesMayHaveManyResults) {
  constexpr int64_t kMany = 300000;
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {kMany}});
  const auto parts = g.add(ops::table().need("split"), {x}, {{"num_outputs", kMany}}, size_t{kMany});
  const ValueId y = g.add1(ops::table().need("concat"), parts, {{"axis", int64_t{0}}});
  g.add_output(y, "y");
  Rewriter rw(g);
  EXPECT_EQ(rw.uses(parts[kMany / 2]), 1u);
  rw.replace(y, x);
  EXPECT_EQ(rw.uses(parts[kMany / 2]), 0u);
  EXPECT_EQ(rw.uses(x), 2u);
}

}  // namespace
}  // namespace trireme::passes
