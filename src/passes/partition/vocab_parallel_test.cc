// Embeddings, heads and losses with a split vocabulary, evenly or not, against the whole model: values,
// gradients, and the number of collectives.
#include "passes/partition/vocab_parallel.h"

#include <gtest/gtest.h>

#include "tests/partition_trial.h"

namespace trireme::passes {
namespace {

using namespace tests;

struct Case {
  int64_t vocabulary = 11;
  bool is_tied = true;
  double smoothing = 0, z_loss = 0;
};

/// ids [2, 3] -> embedding -> norm -> scores over the vocabulary -> loss; gradients of all weights.
struct Language {
  Model m;
  Partitioning how;

  Language(const Case& c, MeshShape mesh, const Shard& rows, const Shard& columns) {
    ir::Graph& g = m.graph;
    const std::vector<int64_t> tokens{0, c.vocabulary - 1, 3, 3, 1, 7},
        wanted{1, 2, -100, 9, c.vocabulary - 1, 0};
    const auto input = [&](const std::string& name, const std::vector<int64_t>& values) {
      m.feeds[name] = Tensor::from<int64_t>({2, 3}, std::span<const int64_t>(values));
      return g.add_input(name, m.feeds[name].type());
    };
    const ValueId ids = input("ids", tokens), labels = input("labels", wanted);
    const ValueId table = m.weight("wte", {c.vocabulary, 6}, rows);
    ValueId x = m.op("gather", {table, ids}, {{"padding_idx", int64_t{7}}});
    x = m.op("rms_norm", {x, m.weight("norm", {6})});
    const ValueId head = c.is_tied ? table : m.weight("head", {6, c.vocabulary}, columns);
    x = m.op("linear", {x, head}, {{"transposed", int64_t{c.is_tied}}});
    const ir::Attrs attrs{{"label_smoothing", c.smoothing}, {"z_loss", c.z_loss}};
    const auto loss = g.add(ops::table().need("cross_entropy"), {x, labels}, attrs, 4, "loss");
    g.add_output(loss[0], "loss");
    g.add_output(loss[1], "lse");
    g.add_output(loss[2], "count");
    g.add_output(loss[3], "correct");
    g.add_input(kLossWeightInput, {DType::f64, tensor::Shape{}});
    m.feeds[kLossWeightInput] = Tensor::scalar<double>(0.5);
    how = {.mesh = std::move(mesh), .coordinates = {}, .placed = m.placed};
    for (const ParamGradient& p : differentiate(g, loss[0], m.weights)) {
      const std::string name = g.value(p.param).name;
      g.add_output(p.gradient, name + ".grad");
      how.outputs[name + ".grad"] = m.placed[name];
    }
    g.sort();
  }
};

TEST(VocabParallel, EqualsTheWholeForAnyNumberOfParts) {
  for (const Case& c : {Case{}, Case{.is_tied = false}, Case{.vocabulary = 12},
                        Case{.smoothing = 0.1, .z_loss = 1e-2}, Case{.is_tied = false, .smoothing = 0.2}}) {
    for (int ranks : {2, 3, 4}) {
      Language l(c, tp(ranks), split(0), split(1));
      const ir::Graph g = expect_same(l.m.graph, l.how, l.m.feeds);
      EXPECT_EQ(count(g, "cross_entropy"), 0u);
      EXPECT_EQ(count(g, "cross_entropy_part"), 1u);
      EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
      // For the embedding, the largest scores, the totals, and the gradient of the norm's result.
      EXPECT_EQ(count(g, "all_reduce"), 4u) << ir::print(g);
    }
  }
}

TEST(VocabParallel, TheTotalsAreOneReductionOfTwoNumbersARow) {
  Language l({}, tp(2), split(0), split(1));
  l.how.coordinates = {0};
  const ir::Graph g = partition(l.m.graph, l.how);
  std::vector<std::string> reduced;
  for (const ir::Node& node : g.nodes()) {
    if (node.op_name() == "all_reduce")
      reduced.push_back(node.attrs.get_string("op", "sum") + g.type(node.in[0]).shape.to_string());
  }
  EXPECT_EQ(reduced, (std::vector<std::string>{"sum[2,3,6]", "max[2,3]", "sum[2,2,3]", "sum[2,3,6]"}));
}

TEST(VocabParallel, OverTwoAxes) {
  Shard rows = Shard({Placement::split(0), Placement::split(0)});
  Shard columns = Shard({Placement::split(1), Placement::split(1)});
  for (bool is_tied : {true, false}) {
    Language l({.vocabulary = 13, .is_tied = is_tied}, MeshShape({{"tpr", 2}, {"tp", 2}}), rows, columns);
    expect_same(l.m.graph, l.how, l.m.feeds);
  }
}

TEST(VocabParallel, ALossOverWholeScoresStays) {
  Language l({.is_tied = false}, tp(2), split(1), Shard());
  EXPECT_EQ(split_classes(l.m.graph, l.m.placed, l.how.mesh), 0u);
  expect_same(l.m.graph, l.how, l.m.feeds);
}

}  // namespace
}  // namespace trireme::passes
