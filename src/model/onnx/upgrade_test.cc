// Tests how nodes of old opsets are rewritten, and others spelled out, by what the new nodes compute. Cases
// that are named in comments, with their results, are those of the ONNX backend tests of that opset.
#include <gtest/gtest.h>

#include <numeric>

#include "model/onnx/emitter.h"
#include "ops/test_grad.h"

namespace trireme::model::onnx {
namespace {

using ir::ValueId;
using tensor::Tensor;
using Values = std::vector<double>;

/// 1, 2, 3, … as [1, 1, rows, columns].
Tensor counting(int64_t rows, int64_t columns) {
  Tensor t = Tensor::empty(tensor::DType::f32, {1, 1, rows, columns});
  std::iota(t.mutable_data<float>().begin(), t.mutable_data<float>().end(), 1.0f);
  return t;
}

/// The values of an old node with operands x and constants; an undefined tensor is an absent operand. With
/// `is_fed`, the constants are inputs whose values come when the graph runs.
Values values_of_old(PendingNode node, const Tensor& x, const std::vector<Tensor>& constants,
                     bool is_fed = false) {
  ir::Graph g;
  std::vector<Tensor> fed{x};
  node.in.push_back(g.add_input("x", x.type()));
  for (const Tensor& t : constants) {
    if (!t.defined()) {
      node.in.push_back(ir::kNoValue);
    } else if (is_fed) {
      node.in.push_back(g.add_input(base::concat("c", fed.size()), t.type()));
      fed.push_back(t);
    } else {
      node.in.push_back(g.add_constant(t));
    }
  }
  Emitter emitter(g, "old");
  const auto results = upgrade(emitter, node);
  g.add_output(results ? (*results)[0] : emitter.emit(node.op_type, node.in, node.attrs), "y");
  g.sort();
  return ops::testing::run_graph(g, fed)[0].to_doubles();
}

Tensor scales_of(std::vector<float> values) {
  return Tensor::from<float>({static_cast<int64_t>(values.size())}, std::span<const float>(values));
}

/// Resize of opset 10 in mode nearest.
Values resize_10_of(const Tensor& x, std::vector<float> scales) {
  const PendingNode node{.op_type = "Resize", .opset = 10, .attrs = {{"mode", std::string("nearest")}}};
  const Values known = values_of_old(node, x, {scales_of(scales)});
  EXPECT_EQ(values_of_old(node, x, {scales_of(scales)}, true), known) << "with scales that come late";
  return known;
}

TEST(OnnxUpgrade, ResizeOfOpset10RoundsUpWhereItShrinks) {
  // test_resize_downsample_nearest and test_resize_upsample_nearest
  EXPECT_EQ(resize_10_of(counting(2, 4), {1, 1, 0.6f, 0.6f}), (Values{1, 3}));
  EXPECT_EQ(resize_10_of(counting(2, 2), {1, 1, 2, 3}),
            (Values{1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4}));
  // Rows 0 and ceil(1 / 0.6) = 2; columns 0, 0, 1, 1.
  EXPECT_EQ(resize_10_of(counting(4, 2), {1, 1, 0.6f, 2}), (Values{1, 1, 2, 2, 5, 5, 6, 6}));
  EXPECT_EQ(resize_10_of(counting(1, 3), {1, 1, 1, 1}), (Values{1, 2, 3}));
}

TEST(OnnxUpgrade, ResizeOfOpset10InterpolatesAtAsymmetricPlaces) {
  // test_resize_downsample_linear: columns 0 and 1 / 0.6
  const PendingNode node{.op_type = "Resize", .opset = 10, .attrs = {{"mode", std::string("linear")}}};
  const Values y = values_of_old(node, counting(2, 4), {scales_of({1, 1, 0.6f, 0.6f})});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_NEAR(y[0], 1, 1e-6);
  EXPECT_NEAR(y[1], 2.6666665, 1e-6);
}

TEST(OnnxUpgrade, UpsampleRoundsDown) {
  const PendingNode node{.op_type = "Upsample", .opset = 9, .attrs = {}};
  EXPECT_EQ(values_of_old(node, counting(1, 2), {scales_of({1, 1, 1, 2.5f})}), (Values{1, 1, 1, 2, 2}));
}

TEST(OnnxUpgrade, NearestHalfPixelsOfTensorFlow) {
  // test_resize_downsample_sizes_nearest_tf_half_pixel_for_nn
  const PendingNode node{.op_type = "Resize",
                         .opset = 11,
                         .attrs = {{"mode", std::string("nearest")},
                                   {"coordinate_transformation_mode", std::string("tf_half_pixel_for_nn")}}};
  const Tensor none = scales_of({}), sizes = Tensor::from<int64_t>({4}, {1, 1, 3, 2});
  EXPECT_EQ(values_of_old(node, counting(4, 4), {none, none, sizes}), (Values{6, 8, 10, 12, 14, 16}));
}

TEST(OnnxUpgrade, OneHotOfOpset9KnowsNoNegativeIndices) {
  const auto rows_of = [](const Tensor& indices, int64_t opset) {
    const PendingNode node{.op_type = "OneHot", .opset = opset, .attrs = {}};
    return values_of_old(node, indices, {Tensor::scalar<int64_t>(3), Tensor::from<float>({2}, {5, 7})});
  };
  const Values old{5, 5, 7, 5, 5, 5, 7, 5, 5, 5, 5, 5}, now{5, 5, 7, 5, 5, 7, 7, 5, 5, 5, 5, 5};
  const Tensor indices = Tensor::from<int64_t>({4}, {2, -1, 0, 3});
  for (const int64_t opset : {9, 10}) {
    EXPECT_EQ(rows_of(indices, opset), old) << opset;
    EXPECT_EQ(rows_of(Tensor::from<float>({4}, {2, -1, 0, 3}), opset), old) << opset;
  }
  EXPECT_EQ(rows_of(indices, 11), now);
}

/// What a node computes from x and the other operands if x and operand 1 had the shape `declared` at import.
Values values_of_declared(PendingNode node, const std::vector<Tensor>& in, const tensor::Shape& declared) {
  ir::Graph g;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool is_like_x = i == 0 || (i == 1 && node.op_type == "TensorScatter");
    node.in.push_back(
        g.add_input(base::concat("x", i), {in[i].dtype(), is_like_x ? declared : in[i].type().shape}));
  }
  Emitter emitter(g, "node");
  auto results = upgrade(emitter, node);
  if (!results) results = decompose(emitter, node);
  g.add_output(results ? (*results)[0] : emitter.emit(node.op_type, node.in, node.attrs), "y");
  g.sort();
  return ops::testing::run_graph(g, in)[0].to_doubles();
}

TEST(OnnxUpgrade, GroupNormOfOpset18TakesAnyShape) {
  const Tensor x = ops::testing::random_tensor(tensor::DType::f32, {2, 6, 4}, -1, 1);
  const std::vector<Tensor> in{x, scales_of({1, 2, 3}), scales_of({0, 10, 20})};
  const auto run = [&](const tensor::Shape& declared) {
    const PendingNode node{
        .op_type = "GroupNormalization", .opset = 18, .attrs = {{"num_groups", int64_t{3}}}};
    return values_of_declared(node, in, declared);
  };
  const Values known = run(x.type().shape);
  EXPECT_EQ(run({tensor::Dim::symbol("n"), tensor::Dim::symbol("c"), tensor::Dim::unknown()}), known);
  EXPECT_EQ(run(tensor::Shape::unknown_rank()), known);
  for (size_t i = 0; i < known.size(); ++i)
    EXPECT_NEAR(known[i], 10.0 * static_cast<double>(i / 8 % 3), 6) << i;
  EXPECT_THROW(run({2, 5, 4}), base::Error);
}

TEST(OnnxUpgrade, TensorScatterTakesAnyRank) {
  // Cache [2, 3, 4] with updates of 2 along one of its axes.
  for (const int64_t axis : {-2, 1, -1, 2}) {
    const size_t at = axis == -2 || axis == 1 ? 1 : 2;
    tensor::Dims part{2, 3, 4};
    part[at] = 2;
    const Tensor cache = ops::testing::random_tensor(tensor::DType::f32, {2, 3, 4}, -1, 1),
                 update = ops::testing::random_tensor(tensor::DType::f32, part, 5, 6),
                 starts = Tensor::from<int64_t>({2}, {1, 0});
    Values want = cache.to_doubles();
    for (int64_t i = 0; i < update.elements(); ++i) {
      int64_t place[3] = {i / (part[1] * part[2]), i / part[2] % part[1], i % part[2]};
      place[at] += place[0] == 0 ? 1 : 0;
      want[static_cast<size_t>((place[0] * 3 + place[1]) * 4 + place[2])] =
          update.to_doubles()[static_cast<size_t>(i)];
    }
    const PendingNode node{.op_type = "TensorScatter", .opset = 24, .attrs = {{"axis", axis}}};
    EXPECT_EQ(values_of_declared(node, {cache, update, starts}, tensor::Shape::unknown(3)), want) << axis;
    EXPECT_EQ(values_of_declared(node, {cache, update, starts}, tensor::Shape::unknown_rank()), want) << axis;
  }
}

}  // namespace
}  // namespace trireme::model::onnx
