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
