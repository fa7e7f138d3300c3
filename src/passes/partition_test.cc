// The partition pass: layers split as by hand, conversions, refusals, and random graphs against the whole.
#include "passes/partition.h"

#include <gtest/gtest.h>

#include "tests/partition_trial.h"

namespace trireme::passes {
namespace {

using namespace tests;

/// Column split, activation, row split: [b, s, h] -> [b, s, h].
ValueId mlp(Model& m, ValueId x, int64_t h, int64_t f, const std::string& name) {
  const ValueId up = m.op(
      "linear", {x, m.weight(name + ".up", {h, f}, split(1)), m.weight(name + ".up_bias", {f}, split(0))});
  const ValueId down = m.op("linear", {m.op("gelu", {up}), m.weight(name + ".down", {f, h}, split(0)),
                                       m.weight(name + ".down_bias", {h})});
  return down;
}

TEST(Partition, ColumnThenRow) {
  for (int ranks : {1, 2, 3, 4}) {
    Model m;
    const ValueId x = m.op("mul", {m.input("x", {2, 5, 8}), m.weight("scale", {8})});
    const Partitioning how = m.finish(mlp(m, x, 8, 12, "mlp"), tp(ranks));
    const ir::Graph g = expect_same(m.graph, how, m.feeds);
    // Forward behind the row split, backward before the column split; the loss is whole.
    EXPECT_EQ(count(g, "all_reduce"), ranks > 1 ? 2u : 0u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u);
  }
}

}  // namespace
}  // namespace trireme::passes
