// Tests evaluation of graphs that take a fixed number of rows: every sample counts once, as with any number.
#include "train/evaluate.h"

#include <gtest/gtest.h>

#include "train/test_runs.h"

namespace trireme::train {
namespace {

/// The loss of a small network, which takes any number of rows, or only so many as given.
ir::Graph loss_of(int64_t rows, model::LossKind kind) {
  const std::string classes = kind == model::LossKind::mse ? "classes=1" : "classes=2";
  const std::vector<std::string> options{"features=2", "hidden=[8]", "seed=3", classes};
  ir::Graph graph = model::zoo::build("mlp", options).graph;
  if (rows > 0) {
    graph.value(graph.inputs()[0]).type.shape[0] = tensor::Dim(rows);
    graph.infer_all();
  }
  model::add_loss(graph, {.kind = kind});
  graph.sort();
  return graph;
}

EvalRecord evaluated(int64_t rows, model::LossKind kind, int64_t max_batches = 0) {
  base::SystemClock clock;
  const ir::Graph graph = loss_of(rows, kind);
  EvaluatorOptions options;
  options.batch = 16;
  options.max_batches = max_batches;
  options.threads = 1;
  options.workers = 1;
  options.target_inputs = TrainTask{}.target_inputs;
  Evaluator evaluator(graph, std::make_shared<const Circles>(), {}, std::move(options), clock);
  return evaluator.run(graph, 1);
}

TEST(Evaluator, AFixedBatchIsFilledUpWithRowsThatDoNotCount) {
  const EvalRecord want = evaluated(0, model::LossKind::cross_entropy);
  EXPECT_EQ(want.targets, 120 - 17);  // every seventh label is ignored
  for (const int64_t rows : {16, 50, 200}) {
    const EvalRecord got = evaluated(rows, model::LossKind::cross_entropy);
    EXPECT_EQ(got.targets, want.targets) << rows;
    EXPECT_EQ(got.accuracy, want.accuracy) << rows;
    EXPECT_NEAR(got.loss, want.loss, 1e-5) << rows;
  }
}

TEST(Evaluator, AFixedBatchOfFloatTargetsMustDivideTheSamples) {
  try {
    evaluated(16, model::LossKind::mse);
    FAIL() << "no error";
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("eval.batches to at most 7"), std::string::npos) << e.message();
  }
  EXPECT_EQ(evaluated(16, model::LossKind::mse, 7).targets, 112);
  EXPECT_EQ(evaluated(20, model::LossKind::mse).targets, 120);
  EXPECT_EQ(evaluated(0, model::LossKind::mse).targets, 120);
}

}  // namespace
}  // namespace trireme::train
