// Tests the training form of dropout: the masks of micro-batches have no number in common, whatever the
// layout.
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

}  // namespace
}  // namespace trireme::passes
