// Gradients of gather*, scatter*, compress and top_k against differences; the embedding's gradient against
// plain loops.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

Tensor at(tensor::Dims dims, std::vector<int64_t> v) {
  return Tensor::from<int64_t>(std::move(dims), std::span<const int64_t>(v));
}

TEST(IndexGrad, Gather) {
  expect_gradient({.op = "gather", .in = {values({5, 3}), at({2, 2}, {4, 0, -1, 4})}});
  expect_gradient(
      {.op = "gather", .in = {values({2, 5, 3}), at({3}, {1, 1, -5})}, .attrs = {{"axis", int64_t{1}}}});
  expect_gradient({.op = "gather", .in = {values({2, 4}), at({}, {2})}, .attrs = {{"axis", int64_t{-1}}}});
  expect_gradient({.op = "gather", .in = {values({6}), at({0}, {})}});
}

TEST(IndexGrad, GatherElementsAndTuples) {
  expect_gradient({.op = "gather_elements",
                   .in = {values({3, 4}), at({2, 3}, {0, -1, 2, 2, 0, 2})},
                   .attrs = {{"axis", int64_t{0}}}});
  expect_gradient({.op = "gather_elements",
                   .in = {values({2, 4}), at({2, 5}, {0, 3, 3, 1, 0, 2, 2, 2, -1, 0})},
                   .attrs = {{"axis", int64_t{1}}}});
  expect_gradient({.op = "gather_nd", .in = {values({3, 4, 2}), at({3, 2}, {0, 1, -1, 3, 0, 1})}});
  expect_gradient({.op = "gather_nd",
                   .in = {values({2, 4, 3}), at({2, 3, 1}, {0, 1, 1, -1, 3, 0})},
                   .attrs = {{"batch_dims", int64_t{1}}}});
  expect_gradient({.op = "gather_nd",
                   .in = {values({2, 2, 4}), at({2, 2, 1}, {0, 1, 1, -1})},
                   .attrs = {{"batch_dims", int64_t{2}}}});
}

TEST(IndexGrad, Scatters) {
  for (const char* mode : {"none", "add", "mul", "max", "min"}) {
    const bool writes = std::string(mode) == "none";
    const Tensor indices = writes ? at({2, 3}, {0, 1, 2, 3, 0, -2}) : at({2, 3}, {0, 1, 1, 3, 0, 0});
    ir::Attrs attrs{{"axis", int64_t{1}}};
    attrs.set("reduction", std::string(mode));
    expect_gradient(
        {.op = "scatter_elements", .in = {values({2, 4}), indices, values({2, 3}, 7)}, .attrs = attrs});
    const Tensor tuples = writes ? at({2, 1}, {2, 0}) : at({3, 1}, {2, 0, -2});
    expect_gradient({.op = "scatter_nd",
                     .in = {values({4, 3}), tuples, values({tuples.dims()[0], 3}, 7)},
                     .attrs = {{"reduction", std::string(mode)}}});
  }
  expect_gradient({.op = "scatter", .in = {values({4, 2}), at({1, 2}, {3, 1}), values({1, 2}, 3)}});
}

TEST(IndexGrad, CompressAndTopK) {
  Tensor keeps = Tensor::empty(DType::boolean, {3});
  for (size_t i = 0; i < 3; ++i) keeps.mutable_data<bool>()[i] = i != 1;
  expect_gradient({.op = "compress", .in = {values({2, 4}), keeps}, .attrs = {{"axis", int64_t{1}}}});
  expect_gradient({.op = "compress", .in = {values({2, 4}), keeps}});
  expect_gradient({.op = "top_k", .in = {values({3, 5}), ints({2})}, .results = 2});
  expect_gradient({.op = "top_k",
                   .in = {values({5, 3}), ints({3})},
                   .attrs = {{"axis", int64_t{0}}, {"largest", int64_t{0}}},
                   .results = 2});
}

/// Sums are in the order of positions and in the type in which f32 kernels add.
TEST(IndexGrad, EmbeddingGradientIsExactAndSkipsPadding) {
  const int64_t rows = 37, width = 301, tokens = 400;
  const Tensor dy = random_tensor(DType::f32, {20, 20, width}, -1, 1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(i % 3 == 0 ? 5 : (i * i + 7) % rows);
  const Tensor where = at({20, 20}, ids);
  for (const bool pads : {false, true}) {
    ir::Attrs attrs{{"shape", std::vector<int64_t>{rows, width}}};
    if (pads) attrs.set("padding_idx", int64_t{5});
    const Tensor got = run("gather_grad", {dy, where}, attrs)[0];
    std::vector<float> want(static_cast<size_t>(rows * width), 0.0f);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = ids[static_cast<size_t>(i)];
      if (pads && row == 5) continue;
      for (int64_t j = 0; j < width; ++j)
        want[static_cast<size_t>(row * width + j)] += dy.data<float>()[static_cast<size_t>(i * width + j)];
    }
    EXPECT_TRUE(got.same_as(Tensor::from<float>({rows, width}, want)));
    // With a base, the base is the first summand, followed by the positions in order.
    const Tensor base = random_tensor(DType::f32, {rows, width}, -1, 1, 9);
    std::vector<float> on_base(base.data<float>().begin(), base.data<float>().end());
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = ids[static_cast<size_t>(i)];
      for (int64_t j = 0; j < width && !(pads && row == 5); ++j)
        on_base[static_cast<size_t>(row * width + j)] += dy.data<float>()[static_cast<size_t>(i * width + j)];
    }
    EXPECT_TRUE(
        run("gather_grad", {dy, where, base}, attrs)[0].same_as(Tensor::from<float>({rows, width}, on_base)));
    const Tensor half = run("gather_grad", {run("cast", {dy}, {{"to", int64_t{16}}})[0], where}, attrs)[0];
    const std::vector<double> h = half.to_doubles();
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(h[i], want[i], 2e-2 * std::max(1.0, std::fabs(static_cast<double>(want[i]))) + 0.02);
  }
}

/// A table that is looked up twice and read as a whole (tied embeddings) has one sum, updated in place.
TEST(IndexGrad, TiedTablesAddRowsToTheWholeGradient) {
  ir::Graph graph;
  const ValueId x = graph.add_input("table", {DType::f64, {6, 3}});
  const ValueId a = graph.add1(table().need("gather"), {x, graph.add_constant(ints({4, 1, 4}))});
  const ValueId b = graph.add1(table().need("gather"), {x, graph.add_constant(ints({0}))});
  const ValueId c = graph.add1(table().need("neg"), {x});
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  const Tensor da = values({3, 3}, 2), db = values({1, 3}, 3), dc = values({6, 3}, 4);
  grads[index(a)] = graph.add_constant(da);
  grads.resize(graph.values().size(), ir::kNoValue);
  grads[index(b)] = graph.add_constant(db);
  grads.resize(graph.values().size(), ir::kNoValue);
  grads[index(c)] = graph.add_constant(dc);
  backpropagate(graph, 0, {1}, grads);
  graph.set_outputs({grads[index(x)]}, {"d"});
  graph.sort();
  for (const ir::Node& node : graph.nodes()) EXPECT_NE(node.op_name(), "add");
  const Tensor got = run_graph(graph, {values({6, 3}, 1)})[0];
  for (size_t i = 0; i < 18; ++i) {
    double want = -dc.data<double>()[i];
    for (size_t r : {size_t{0}, size_t{2}})
      if (i / 3 == 4) want += da.data<double>()[3 * r + i % 3];
    if (i / 3 == 1) want += da.data<double>()[3 + i % 3];
    if (i / 3 == 0) want += db.data<double>()[i % 3];
    EXPECT_NEAR(got.data<double>()[i], want, 1e-12) << i;
  }
}

TEST(IndexGrad, AnIndexOutsideTheTableIsReported) {
  const Tensor dy = random_tensor(DType::f32, {2, 3}, -1, 1);
  EXPECT_THROW(run("gather_grad", {dy, ints({0, 9})}, {{"shape", std::vector<int64_t>{4, 3}}}), base::Error);
}

}  // namespace
}  // namespace trireme::ops
