// Tests the training form of dropout: the masks of micro-batches have no number in common, whatever the
// layout. And losses of one element that have dimensions.
#include "passes/train/train.h"

#include <gtest/gtest.h>

#include "ops/test_grad.h"

namespace trireme::passes {
namespace {

using ops::testing::ints;
using ops::testing::run;
using ops::testing::run_graph;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kBatchRows = 2;  // of a micro-batch

Tensor ones(const Dims& dims) {
  Tensor t = Tensor::empty(DType::f32, dims);
  for (float& v : t.mutable_data<float>()) v = 1;
  return t;
}

/// Dropout of x of these extents, in training form.
ir::Graph dropout_of(const Dims& dims) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, tensor::Shape::of(dims)});
  const ir::ValueId ratio = g.add_constant(Tensor::scalar(0.5f));
  g.add_output(g.add1(ops::table().need("dropout"), {x, ratio}), "y");
  g.sort();
  to_training(g);
  g.sort();
  number_masks(g, kBatchRows);
  return g;
}

const ir::Node& dropout_in(const ir::Graph& g) {
  for (const ir::Node& node : g.nodes()) {
    if (node.op_name() == "dropout_train") return node;
  }
  base::fail(base::ErrorCode::internal, "no dropout");
}

TEST(Training, MasksOfMicroBatchesAreDisjointInEveryLayout) {
  // [batch, tokens, width], [tokens, batch, width], [batch * tokens, width], the same for all samples, and
  // elements that do not divide into rows.
  for (const Dims& dims : {Dims{2, 8, 6}, Dims{8, 2, 6}, Dims{16, 6}, Dims{1, 8, 6}, Dims{48}, Dims{5, 3}}) {
    const ir::Graph g = dropout_of(dims);
    const int64_t n = tensor::element_count(dims), row = (n + kBatchRows - 1) / kBatchRows;
    // The draws of consecutive numbers from 0.
    const Tensor numbers =
        run("dropout_train", {ones({1, 3 * kBatchRows * row}), ints({7, 3, 0})}, {{"ratio", 0.5}})[0];
    for (int64_t m = 0; m < 3; ++m) {
      const Tensor mask = run_graph(g, {ones(dims), ints({7, 3, m * kBatchRows})})[0];
      const auto want =
          numbers.data<float>().subspan(static_cast<size_t>(m * kBatchRows * row), static_cast<size_t>(n));
      EXPECT_TRUE(mask.same_as(Tensor::from<float>(dims, want))) << tensor::to_string(dims) << " " << m;
    }
  }
}

TEST(Training, OnlyLayoutsWithoutTheBatchInFrontAreTold) {
  EXPECT_EQ(dropout_in(dropout_of({2, 8, 6})).attrs.get_int("rows", -1), -1);
  EXPECT_EQ(dropout_in(dropout_of({8, 2, 6})).attrs.get_int("rows", -1), kBatchRows);
}

TEST(Training, ALossOfOneElementMayHaveDimensions) {
  for (const Dims& dims : {Dims{}, Dims{1}, Dims{1, 1}}) {
    ir::Graph g;
    const tensor::TensorType type{DType::f32, tensor::Shape::of(dims)};
    const ir::ValueId x = g.add_input("x", type), w = g.add_input("w", type);
    const ir::ValueId product = g.add1(ops::table().need("mul"), {x, w});
    const ir::ValueId loss = g.add1(ops::table().need("add"), {product, x});
    g.add_output(loss, "loss_sum");
    const std::vector<ParamGradient> gradients = differentiate(g, loss, {w});
    ASSERT_EQ(gradients.size(), 1u);
    g.add_output(gradients[0].gradient, "w.gradient");
    g.sort();
    ir::verify(g);
    EXPECT_EQ(g.type(g.outputs()[0]).shape.rank(), 0u);
    EXPECT_EQ(g.type(g.outputs()[1]), type);
    const auto filled = [&](float value) {
      return Tensor::from<float>(dims, std::span<const float>(&value, 1));
    };
    const std::vector<Tensor> out = run_graph(g, {filled(3), filled(2), Tensor::scalar(0.5f)});
    EXPECT_EQ(out[0].to_doubles(), std::vector<double>{9});
    EXPECT_EQ(out[1].to_doubles(), std::vector<double>{1.5});
  }
}

TEST(Training, ALossOfSeveralElementsIsRefused) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, {2}});
  const ir::ValueId loss = g.add1(ops::table().need("exp"), {x});
  g.add_output(loss, "loss_sum");
  EXPECT_THROW(differentiate(g, loss, {x}), base::Error);
}

}  // namespace
}  // namespace trireme::passes
