// Tests ONNX export: importing the exported file gives the same graph, also with bodies, unknown sizes and
// expansions of ops.
#include "model/onnx/export.h"

#include <gtest/gtest.h>

#include "model/builder.h"
#include "model/onnx/import.h"
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
