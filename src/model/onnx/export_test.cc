// Tests ONNX export: importing the exported file gives the same graph, also with bodies, unknown sizes and
// expansions of ops.
#include "model/onnx/export.h"

#include <gtest/gtest.h>

#include "model/builder.h"
#include "model/onnx/import.h"
#include "model/onnx/proto.h"
#include "ops/table.h"

namespace trireme::model::onnx {
namespace {

using ir::ValueId;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

Model round_trip(const ir::Graph& g) {
  const auto bytes = std::make_shared<std::string>(export_onnx(g));
  return import_onnx(*bytes, bytes, "");
}

TEST(OnnxExport, KeepsTypesWithUnknownAndSymbolicSizes) {
  for (const Shape& shape : {Shape{}, Shape{3, Dim::unknown(), Dim::symbol("n")}, Shape::unknown_rank()}) {
    ir::Graph g;
    const ValueId x = g.add_input("x", {DType::f32, shape});
    g.add_output(Builder(g).op("relu", {x}), "y");
    const Model again = round_trip(g);
    EXPECT_EQ(again.graph.type(again.graph.inputs()[0]).to_string(), g.type(x).to_string());
    EXPECT_EQ(again.graph.output_names()[0], "y");
  }
}

TEST(OnnxExport, ExpandsWhatOnnxLacks) {
  ir::Graph g;
  Builder b(g);
  const ValueId x = g.add_input("x", {DType::f32, {2, 3}});
  const ValueId w = b.param("w", Tensor::from<float>({4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  const ValueId bias = b.param("bias", Tensor::from<float>({4}, {1, 2, 3, 4}));
  g.add_output(b.linear(x, w, bias), "y");
  const Model again = round_trip(g);
  EXPECT_EQ(again.graph.type(again.graph.outputs()[0]).to_string(), "f32[2,4]");
  for (const ir::Node& node : again.graph.nodes()) EXPECT_NE(node.op_name(), "linear");
}

TEST(OnnxExport, RefusesWhatOnlyOldOpsetsHave) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {1, 1, 4, 4}});
  const ValueId scales = g.add_constant(Tensor::from<float>({4}, {1, 1, 2, 2}));
  const ir::Attrs attrs{{"coordinate_transformation_mode", std::string("tf_half_pixel_for_nn")}};
  g.add_output(Builder(g).op("resize", {x, ir::kNoValue, scales}, attrs), "y");
  EXPECT_THROW(export_onnx(g), base::Error);
}

int64_t declared_opset(const ir::Graph& g, const ExportOptions& options = {}) {
  const std::string bytes = export_onnx(g, options);
  return parse_model(bytes).opset_import.at(0).version;
}

/// softmax(q k^T) v of one value over open extents, as language models have it.
void add_window_attention(ir::Graph& g, const ir::Attrs& attrs) {
  const ValueId x = g.add_input("x", {DType::f32, {1, Dim::symbol("n"), 2, 4}});
  g.add_output(Builder(g).op("attention_bsnd", {x, x, x}, attrs), "y");
}

int64_t opset_of_one_op(const std::string& op, DType dtype, const ir::Attrs& attrs = {}) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {dtype, {2, 3}});
  g.add_output(Builder(g).op(op, {x}, attrs), "y");
  return declared_opset(g);
}

TEST(OnnxExport, DeclaresTheOpsetOfTheYoungestForm) {
  EXPECT_EQ(opset_of_one_op("gelu", DType::f32), 21);
  EXPECT_EQ(opset_of_one_op("swish", DType::f32), 24);
  EXPECT_EQ(opset_of_one_op("sin", DType::bf16), 22);
  EXPECT_EQ(opset_of_one_op("relu", DType::bf16), 21);
  EXPECT_EQ(opset_of_one_op("cast", DType::f32, {{"to", int64_t{1}}}), 21);
  EXPECT_EQ(opset_of_one_op("cast", DType::f32, {{"to", int64_t{24}}, {"round_mode", std::string("up")}}),
            24);
  EXPECT_EQ(opset_of_one_op("cast", DType::f32, {{"to", int64_t{23}}}), 23) << "f4e2m1";
  ir::Graph plain, window;
  add_window_attention(plain, {});
  add_window_attention(window, {{"left_window_size", int64_t{3}}});
  EXPECT_EQ(declared_opset(plain), 23);
  EXPECT_EQ(declared_opset(window), 25);
  EXPECT_EQ(declared_opset(window, {.opset = 26}), 26);
}

TEST(OnnxExport, DeclaresTheOpsetOfWhatBodiesExpandTo) {
  const auto branch = [] {
    auto body = std::make_shared<ir::Graph>();
    add_window_attention(*body, {{"left_window_size", int64_t{3}}});
    return ir::GraphPtr(body);
  };
  ir::Graph g;
  const ValueId c = g.add_input("c", {DType::boolean, {}});
  const ValueId x = g.add_input("x", {DType::f32, {1, Dim::symbol("n"), 2, 4}});
  const ir::Attrs attrs{{"then_branch", branch()}, {"else_branch", branch()}, {"captures", int64_t{1}}};
  g.add_output(Builder(g).op("if", {c, x}, attrs), "y");
  EXPECT_EQ(declared_opset(g), 25);
}

TEST(OnnxExport, WritesNoOpsetThatLacksItsForms) {
  ir::Graph g;
  g.add_output(Builder(g).op("relu", {g.add_input("x", {DType::f32, {2}})}), "y");
  EXPECT_THROW(export_onnx(g, {.opset = 20}), base::Error);
  EXPECT_THROW(export_onnx(g, {.opset = kNewestOpset + 1}), base::Error);
  EXPECT_EQ(declared_opset(g, {.opset = kNewestOpset}), kNewestOpset);
}

TEST(OnnxExport, KeepsBodiesAndTheirCaptures) {
  // if (c) x + k else -x: the branches capture x, and one has a constant of its own.
  const auto branch = [](bool adds) {
    auto body = std::make_shared<ir::Graph>();
    Builder b(*body);
    const ValueId x = body->add_input("inner", {DType::f32, {2}});
    const ValueId y = adds ? b.op("add", {x, b.scalar(5)}) : b.op("neg", {x});
    body->add_output(y, "r");
    return ir::GraphPtr(body);
  };
  ir::Graph g;
  const ValueId c = g.add_input("c", {DType::boolean, {}}), x = g.add_input("x", {DType::f32, {2}});
  const ir::Attrs attrs{
      {"then_branch", branch(true)}, {"else_branch", branch(false)}, {"captures", int64_t{1}}};
  g.add_output(Builder(g).op("if", {c, x}, attrs), "y");
  const Model again = round_trip(g);
  ASSERT_EQ(again.graph.nodes().size(), 1u);
  const ir::Node& node = again.graph.nodes()[0];
  EXPECT_EQ(node.op_name(), "if");
  EXPECT_EQ(node.attrs.get_int("captures", 0), 1);
  EXPECT_EQ(node.in.size(), 2u);
  EXPECT_EQ(node.attrs.get_graph("then_branch")->nodes().size(), 1u);
  EXPECT_EQ(node.attrs.get_graph("then_branch")->nodes()[0].op_name(), "add");
  EXPECT_EQ(node.attrs.get_graph("else_branch")->inputs().size(), 1u);
}

}  // namespace
}  // namespace trireme::model::onnx
