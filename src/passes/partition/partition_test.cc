// The partition pass: layers split as one would by hand, conversions, refusals, and random graphs against the
// whole graph.
#include "passes/partition/partition.h"

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
    // The forward pass reduces after the row split, the backward pass before the column split.
    EXPECT_EQ(count(g, "all_reduce"), ranks > 1 ? 2u : 0u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u);
  }
}

/// The error message of partition(); "" if there is none.
std::string refusal(const ir::Graph& graph, Partitioning how) {
  how.coordinates.assign(how.mesh.axes().size(), 0);
  try {
    partition(graph, how);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(Partition, GatedLayerAndParallelBranchesReduceOnce) {
  Model m;
  const ValueId x = m.op("mul", {m.input("x", {2, 3, 8}), m.weight("scale", {8})});
  const auto column = [&](const std::string& name) {
    return m.op("linear", {x, m.weight(name, {8, 12}, split(1))});
  };
  const auto row = [&](ValueId h, const std::string& name) {
    return m.op("linear", {h, m.weight(name, {12, 8}, split(0))});
  };
  const ValueId gated = m.op("mul", {m.op("swish", {column("gate")}), column("up")});
  // Two branches are added: their partial sums are added before the reduction.
  const ValueId y = m.op("add", {row(gated, "down"), row(m.op("tanh", {column("other")}), "back")});
  const Partitioning how = m.finish(m.op("add", {x, y}), tp(4));
  const ir::Graph g = expect_same(m.graph, how, m.feeds);
  EXPECT_EQ(count(g, "all_reduce"), 2u) << ir::print(g);
  EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
}

TEST(Partition, PackedGateAndUpAreTwoSections) {
  Model m;
  const ValueId x = m.op("mul", {m.input("x", {3, 8}), m.weight("scale", {8})});
  const ValueId both = m.op(
      "linear", {x, m.weight("gate_up", {8, 24}, split(1, 2)), m.weight("gate_up_bias", {24}, split(0, 2))});
  const auto parts = m.graph.add(ops::table().need("split"), {both}, {{"axis", int64_t{-1}}}, 2, "parts");
  const ValueId y = m.op(
      "linear", {m.op("mul", {m.op("swish", {parts[0]}), parts[1]}), m.weight("down", {12, 8}, split(0))});
  for (int ranks : {2, 3, 4}) {
    Model copy = m;
    const Partitioning how = copy.finish(y, tp(ranks));
    const ir::Graph g = expect_same(copy.graph, how, copy.feeds);
    EXPECT_EQ(count(g, "all_reduce"), 2u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
  }
}

TEST(Partition, ConvertsBetweenAnyTwoPlacements) {
  // An identity with every declared placement of its input and its output.
  const std::vector<Placement> all{
      {}, Placement::split(0), Placement::split(1), Placement::split(1, 3), Placement::split(0, 2)};
  for (int ranks : {2, 4}) {
    for (const Placement& from : all) {
      for (const Placement& to : all) {
        Model m;
        const ValueId x = m.input("x", {16, 24});
        m.graph.add_output(m.op("neg", {m.op("neg", {x})}), "y");
        // A partial sum, as a product over a split index makes it.
        const ValueId v = m.input("v", {16, 8}), w = m.input("w", {8, 24});
        m.graph.add_output(m.op("linear", {v, w}), "z");
        m.graph.sort();
        const Partitioning how{.mesh = tp(ranks),
                               .coordinates = {},
                               .placed = {{"x", on_last(1, from)}, {"v", split(1)}, {"w", split(0)}},
                               .outputs = {{"y", on_last(1, to)}, {"z", on_last(1, to)}}};
        const ir::Graph g = expect_same(m.graph, how, m.feeds);
        EXPECT_EQ(count(g, "all_to_all"), from.is_split() && to.is_split() && from.dim != to.dim &&
                                                  from.sections == 1 && to.sections == 1
                                              ? 1u
                                              : 0u);
      }
    }
  }
}

TEST(Partition, ConstantsAreCutWhenTheGraphIsMade) {
  Model m;
  const ValueId x = m.input("x", {4, 6});
  m.graph.add_output(m.op("add", {x, m.constant({4, 6})}), "y");
  m.graph.sort();
  const Partitioning how{
      .mesh = tp(2), .coordinates = {}, .placed = {{"x", split(1)}}, .outputs = {{"y", split(1)}}};
  const ir::Graph g = expect_same(m.graph, how, m.feeds);
  EXPECT_EQ(g.nodes().size(), 1u) << ir::print(g);
}

TEST(Partition, WholeModelsAndUntouchedAxesStayAsTheyAre) {
  Model m;
  const ValueId x = m.input("x", {2, 5, 8});
  Partitioning how = m.finish(mlp(m, x, 8, 12, "mlp"), MeshShape({{"dp", 2}, {"tp", 2}}));
  how.placed.clear();
  how.outputs.clear();
  how.coordinates = {1, 1};
  EXPECT_EQ(partition(m.graph, how).nodes().size(), m.graph.nodes().size());
  how.placed["mlp.up"] = on_last(1, Placement::split(1));  // over dp, the first axis
  how.untouched = {"dp"};
  EXPECT_EQ(partition(m.graph, how).nodes().size(), m.graph.nodes().size());
}

TEST(Partition, UpdatesKeepTheirStatesPlacement) {
  Model m;
  const ValueId x = m.input("x", {2, 3, 8});
  const ValueId w = m.weight("w", {8, 12}, split(1)), s = m.weight("s", {8});
  const ValueId y = m.op("linear", {m.op("mul", {x, s}), w});
  m.graph.add_input(kLossWeightInput, {DType::f64, tensor::Shape{}});
  const ValueId loss = m.op("reduce_sum", {y, m.ints({0, 1, 2})}, {{"keepdims", int64_t{0}}});
  const ValueId count_of = m.graph.add_input("count", {DType::i64, tensor::Shape{}});
  for (const ParamGradient& g : differentiate(m.graph, loss, m.weights)) {
    const std::string name = m.graph.value(g.param).name + ".grad";
    const ValueId sum = m.graph.add_state(name, m.graph.type(g.param));
    m.placed[name] = m.placed[m.graph.value(g.param).name];
    m.graph.add1(ops::table().need("tree_accumulate"), {count_of, g.gradient, sum});
  }
  m.graph.sort();
  const ir::Graph g = partition(m.graph, {.mesh = tp(2), .coordinates = {1}, .placed = m.placed});
  EXPECT_EQ(infer_shards(g).size(), g.values().size());
  EXPECT_EQ(count(g, "tree_accumulate"), 2u);
  EXPECT_EQ(count(g, "all_reduce"), 1u) << ir::print(g);
}

TEST(Partition, RefusesWhatDoesNotDivide) {
  Model m;
  const ValueId x = m.input("x", {2, 10});
  const ValueId y = m.op("softmax", {m.op("linear", {x, m.weight("w", {10, 7}, split(1))})});
  Partitioning how = m.finish(y, tp(2));
  how.placed["w"] = split(1, 2);
  EXPECT_NE(refusal(m.graph, how).find("'w' f64[10,7] cannot be S(1/2) on mesh axis 'tp' of 2 ranks"),
            std::string::npos)
      << refusal(m.graph, how);
  how.placed["w"] = split(2);
  EXPECT_NE(refusal(m.graph, how).find("it has no such dimension"), std::string::npos);
  how.placed["w"] = split(0);
  how.mesh = tp(7);
  EXPECT_NE(refusal(m.graph, how).find("some ranks would hold nothing"), std::string::npos);
  // A lookup in a split table works for any number of rows; a transposed view of an unevenly split one does
  // not.
  Model views;
  const ValueId table = views.weight("table", {10, 6}, split(0));
  const Partitioning cut = views.finish(views.reshape(table, {5, 12}), tp(4));
  EXPECT_NE(refusal(views.graph, cut)
                .find("'table' f64[10,6] is S(0) on mesh axis 'tp', whose 4 ranks do not "
                      "divide it evenly, which node 'reshape0' (reshape) needs"),
            std::string::npos)
      << refusal(views.graph, cut);
}

TEST(Partition, TheSameOnEveryRank) {
  Model m;
  const ValueId x = m.op("mul", {m.input("x", {2, 5, 8}), m.weight("scale", {8})});
  Partitioning how = m.finish(mlp(m, mlp(m, x, 8, 12, "a"), 8, 12, "b"), tp(4));
  std::vector<std::string> collectives;
  for (int rank = 0; rank < 4; ++rank) {
    how.coordinates = {rank};
    const ir::Graph g = partition(m.graph, how);
    std::string text;
    for (const ir::Node& node : g.nodes()) {
      if (node.op->schema.is_collective) text += base::concat(node.op_name(), " ", node.from, "\n");
    }
    collectives.push_back(text);
    EXPECT_EQ(text, collectives[0]);
  }
}

}  // namespace
}  // namespace trireme::passes
