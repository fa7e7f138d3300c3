// Tests that training modes go, that nothing else changes, and what is refused.
#include "passes/train/inference_form.h"

#include <gtest/gtest.h>

#include "ops/test_grad.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using ops::testing::run_graph;
using tensor::DType;
using tensor::Tensor;

/// Dropout of a batch norm, both in training mode, as PyTorch exports them.
struct Exported {
  ir::Graph graph;
  std::vector<ValueId> norm, drop;

  Exported() {
    const auto channels = [&](const char* name, float value) {
      return graph.add_param(name, Tensor::from<float>({2}, {value, value}));
    };
    const ValueId x = graph.add_input("x", {DType::f32, {2, 2}});
    norm = graph.add(ops::table().need("batch_norm"),
                     {x, channels("scale", 2), channels("bias", 1), channels("mean", 3), channels("var", 4)},
                     {{"epsilon", 0.0}, {"momentum", 0.8}, {"training_mode", int64_t{1}}}, 3, "norm");
    const ValueId ratio = graph.add_constant(Tensor::scalar(0.5f));
    const ValueId mode = graph.add_constant(Tensor::scalar(true));
    drop = graph.add(ops::table().need("dropout"), {norm[0], ratio, mode}, {}, 2, "drop");
    graph.add_output(drop[0], "y");
  }
};

TEST(InferenceForm, TakesRunningStatisticsAndKeepsEveryElement) {
  Exported e;
  EXPECT_EQ(to_inference(e.graph), 2u);
  ir::verify(e.graph);
  ASSERT_EQ(e.graph.nodes().size(), 2u);
  for (const ir::Node& node : e.graph.nodes()) {
    EXPECT_FALSE(node.attrs.has("training_mode"));
    EXPECT_EQ(node.out.size(), 1u);
    if (node.op_name() == "batch_norm") {
      EXPECT_EQ(node.attrs.get_float("momentum", 0), 0.8);
    } else {
      EXPECT_EQ(node.in.size(), 2u);  // of the dropout, whose ratio stays for training
    }
  }
  const Tensor y = run_graph(e.graph, {Tensor::from<float>({2, 2}, {3, 5, 7, 1})})[0];
  EXPECT_EQ(y.to_doubles(), (std::vector<double>{1, 3, 5, -1}));  // 2 (x - 3) / 2 + 1
  EXPECT_EQ(to_inference(e.graph), 0u);
}

/// x [2, 2] through a norm that is fixed in the file, and one of the given kind in training mode.
struct TwoNorms {
  ir::Graph graph;
  ValueId x = graph.add_input("x", {DType::f32, {2, 2}});

  ValueId channels(const std::string& name, float value) {
    return graph.add_param(name, Tensor::from<float>({2}, {value, value}));
  }
  ValueId norm(ValueId of, const std::string& name, ValueId mean, ValueId variance, int64_t mode) {
    const ir::Attrs attrs{{"epsilon", 0.0}, {"training_mode", mode}};
    return graph.add(ops::table().need("batch_norm"),
                     {of, channels(name + ".scale", 1), channels(name + ".bias", 0), mean, variance}, attrs,
                     mode == 0 ? 1 : 3, name)[0];
  }
  ValueId fixed() { return norm(x, "fixed", channels("fixed.mean", 1), channels("fixed.var", 4), 0); }
  const ir::Node& named(const char* name) const {
    for (const ir::Node& node : graph.nodes()) {
      if (node.from == name && node.op_name() == "batch_norm") return node;
    }
    base::fail(base::ErrorCode::internal, "no norm ", name);
  }
};

TEST(InferenceForm, MarksNormsThatAreFixedBesideTrainedOnes) {
  TwoNorms mixed;
  mixed.graph.add_output(
      mixed.norm(mixed.fixed(), "trained", mixed.channels("mean", 0), mixed.channels("var", 1), 1), "y");
  EXPECT_EQ(to_inference(mixed.graph), 1u);
  EXPECT_TRUE(is_fixed_norm(mixed.named("fixed")));
  EXPECT_FALSE(is_fixed_norm(mixed.named("trained")));

  TwoNorms inference;  // an export for inference says nothing about what trains
  inference.graph.add_output(inference.fixed(), "y");
  EXPECT_EQ(to_inference(inference.graph), 0u);
  EXPECT_FALSE(is_fixed_norm(inference.named("fixed")));
}

TEST(InferenceForm, ANormWithoutRunningStatisticsTakesThoseOfItsBatch) {
  TwoNorms n;
  const ValueId axes = n.graph.add_constant(Tensor::from<int64_t>({1}, {0}));
  const auto mean_of = [&](ValueId of) {
    return n.graph.add1(ops::table().need("reduce_mean"), {of, axes}, {{"keepdims", int64_t{0}}});
  };
  const ValueId square = n.graph.add1(ops::table().need("mul"), {n.x, n.x});  // no variance: is not read
  n.graph.add_output(n.norm(n.x, "batch", mean_of(n.x), mean_of(square), 1), "y");
  n.graph.sort();
  EXPECT_EQ(to_inference(n.graph), 1u);
  ir::verify(n.graph);
  const Tensor y = run_graph(n.graph, {Tensor::from<float>({2, 2}, {3, 5, 7, 1})})[0];
  EXPECT_EQ(y.to_doubles(), (std::vector<double>{-1, 1, 1, -1}));
}

TEST(InferenceForm, RefusesRunningStatisticsInConstants) {
  TwoNorms n;
  const ValueId mean = n.graph.add_constant(Tensor::from<float>({2}, {0, 0}), "mean");
  n.graph.add_output(n.norm(n.x, "norm", mean, n.channels("var", 1), 1), "y");
  try {
    to_inference(n.graph);
    FAIL() << "nothing would move a constant";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(e.message().find("'mean'"), std::string::npos) << e.message();
  }
}

TEST(InferenceForm, RefusesResultsOfTrainingThatAreRead) {
  Exported statistics;
  statistics.graph.add_output(statistics.norm[1], "new_mean");
  EXPECT_THROW(to_inference(statistics.graph), base::Error);
  Exported mask;
  mask.graph.add_output(mask.drop[1], "mask");
  EXPECT_THROW(to_inference(mask.graph), base::Error);
}

}  // namespace
}  // namespace trireme::passes
