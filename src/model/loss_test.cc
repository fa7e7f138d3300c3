// Losses against sums written out in double, and what add_loss refuses.
#include "model/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/builder.h"
#include "model/interpret.h"

namespace trireme::model {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Tensor;

/// A graph that passes its input through relu to the output `name`.
ir::Graph passing(const std::string& name, tensor::TensorType type) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", std::move(type));
  g.add_output(Builder(g).op("relu", {x}), name);
  return g;
}

TEST(Loss, CrossEntropyOfNextTokens) {
  ir::Graph g = passing("logits", {DType::f32, {Dim::symbol("batch"), Dim::symbol("seq"), 3}});
  const Loss loss = add_loss(g);
  g.sort();
  ir::verify(g);
  EXPECT_NE(loss.correct, ir::kNoValue);
  EXPECT_EQ(g.output_names(), (std::vector<std::string>{"loss_sum", "count", "correct"}));
  const std::vector<float> x{1, 2, 3, 0, 5, 1, 4, 0, 2, 1, 1, 0};
  const Tensor labels = Tensor::from<int64_t>({2, 2}, {2, 0, -100, 1});
  const auto out = interpret(g, {Tensor::from<float>({2, 2, 3}, x), labels});
  double want = 0;
  for (const auto& [row, label] : {std::pair{0, 2}, {1, 0}, {3, 1}}) {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += std::exp(double{x[static_cast<size_t>(row * 3 + c)]});
    want += std::log(sum) - double{x[static_cast<size_t>(row * 3 + label)]};
  }
  EXPECT_NEAR(out[0].data<float>()[0], want, 1e-5);
  EXPECT_EQ(out[1].data<float>()[0], 3);
  EXPECT_EQ(out[2].data<float>()[0], 1);  // row 0; row 1 is wrong, row 3 a tie that the first class wins
}

TEST(Loss, ProbabilitiesAreTakenBackToLogits) {
  const tensor::TensorType type{DType::f32, {Dim::symbol("batch"), 3}};
  ir::Graph plain = passing("scores", type), soft;
  Builder b(soft);
  const ir::ValueId x = b.op("relu", {soft.add_input("x", type)});
  soft.add_output(b.op("softmax", {x}, {{"axis", int64_t{1}}}), "scores");
  const std::vector<Tensor> in{Tensor::from<float>({2, 3}, {1, 2, 3, 0, 5, 1}),
                               Tensor::from<int64_t>({2}, {2, 0})};
  std::vector<float> losses;
  for (ir::Graph* g : {&plain, &soft}) {
    add_loss(*g);
    g->sort();
    losses.push_back(interpret(*g, in)[0].data<float>()[0]);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(Loss, MeanSquaredErrorKeepsOutputsOnRequest) {
  ir::Graph g = passing("value", {DType::f32, {Dim::symbol("batch"), 2}});
  add_loss(g, {.kind = LossKind::mse, .keeps_outputs = true});
  g.sort();
  EXPECT_EQ(g.output_names(), (std::vector<std::string>{"value", "loss_sum", "count"}));
  const auto out =
      interpret(g, {Tensor::from<float>({1, 2}, {3, 4}), Tensor::from<float>({1, 2}, {1, 4.5f})});
  EXPECT_FLOAT_EQ(out[1].data<float>()[0], 4.25f);
  EXPECT_EQ(out[2].data<float>()[0], 2);
}

TEST(Loss, CosineOfStackedPairs) {
  ir::Graph g = passing("sentence_embedding", {DType::f32, {Dim::symbol("batch"), 2}});
  add_loss(g, {.kind = LossKind::cosine, .keeps_outputs = true});
  g.sort();
  ir::verify(g);
  const Tensor x = Tensor::from<float>({4, 2}, {1, 0, 2, 0, 3, 4, 4, 3});  // pairs (0, 1) and (2, 3)
  const auto out = interpret(g, {x, Tensor::from<float>({2}, {0.5f, 1})});
  ASSERT_EQ(g.output_names()[1], "similarity");
  EXPECT_NEAR(out[1].data<float>()[0], 1, 1e-6);
  EXPECT_NEAR(out[1].data<float>()[1], 0.96, 1e-6);
  EXPECT_NEAR(out[2].data<float>()[0], 0.25 + 0.0016, 1e-6);
  EXPECT_EQ(out[3].data<float>()[0], 2);
}

TEST(Loss, DetectionCountsBoxesOfObjectsOnly) {
  ir::Graph g;
  const ir::ValueId logits = g.add_input("a", {DType::f32, {Dim::symbol("batch"), 2, 3}});
  const ir::ValueId boxes = g.add_input("b", {DType::f32, {Dim::symbol("batch"), 2, 4}});
  Builder b(g);
  g.add_output(b.op("relu", {logits}), "class_logits");
  g.add_output(b.op("relu", {boxes}), "boxes");
  add_loss(g, {.kind = LossKind::detection, .box_weight = 2});
  g.sort();
  const auto out = interpret(
      g, {Tensor::zeros(DType::f32, {1, 2, 3}), Tensor::from<float>({1, 2, 4}, {9, 9, 9, 9, 1, 2, 3, 4}),
          Tensor::from<int64_t>({1, 2}, {0, 2}), Tensor::zeros(DType::f32, {1, 2, 4})});
  EXPECT_NEAR(out[0].data<float>()[0], 2 * std::log(3.0) + 2 * 2.5, 1e-5);
  EXPECT_EQ(out[1].data<float>()[0], 2);
}

TEST(Loss, DetectionLeavesOutTheBoxesOfIgnoredCells) {
  ir::Graph g;
  const ir::ValueId logits = g.add_input("a", {DType::f32, {Dim::symbol("batch"), 3, 3}});
  const ir::ValueId boxes = g.add_input("b", {DType::f32, {Dim::symbol("batch"), 3, 4}});
  Builder b(g);
  g.add_output(b.op("relu", {logits}), "class_logits");
  g.add_output(b.op("relu", {boxes}), "boxes");
  add_loss(g, {.kind = LossKind::detection, .ignored = 255, .box_weight = 2});
  g.sort();
  std::vector<float> found(12, 9);
  std::fill(found.begin() + 4, found.begin() + 8, 3.0f);
  const auto out =
      interpret(g, {Tensor::zeros(DType::f32, {1, 3, 3}), Tensor::from<float>({1, 3, 4}, found),
                    Tensor::from<int64_t>({1, 3}, {0, 2, 255}), Tensor::zeros(DType::f32, {1, 3, 4})});
  EXPECT_NEAR(out[0].data<float>()[0], 2 * std::log(3.0) + 2 * 3, 1e-5);  // the box of cell 1 alone
  EXPECT_EQ(out[1].data<float>()[0], 2);
}

TEST(Loss, SaysWhatIsMissing) {
  ir::Graph g = passing("value", {DType::f32, {Dim::symbol("batch"), 2}});
  EXPECT_THROW(add_loss(g, {.output = "logits"}), base::Error);
  EXPECT_THROW(add_loss(g, {.kind = LossKind::detection}), base::Error);
}

}  // namespace
}  // namespace trireme::model
