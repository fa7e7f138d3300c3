// if, loop, scan: schemas of the ops with subgraphs, which the engine executes.
#include "ops/shape/shape_rules.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using Types = std::vector<tensor::TensorType>;

// The number of outer values that the subgraphs read. They are the last operands of the node and the last
// inputs of every subgraph.
size_t captures(const NodeView& n) {
  const int64_t count = n.attrs.get_int("captures", 0);
  base::require(count >= 0 && static_cast<size_t>(count) <= n.in.size(), "captures = ", count, " of ",
                n.in.size(), " operands");
  return static_cast<size_t>(count);
}

Types output_types(const ir::Graph& body) {
  Types types;
  for (ir::ValueId id : body.outputs()) types.push_back(body.type(id));
  return types;
}

/// The shape of a value that may be either of the two: extents that differ are unknown.
Shape either(const Shape& a, const Shape& b) {
  if (!a.has_rank() || !b.has_rank() || a.rank() != b.rank()) return Shape::unknown_rank();
  Shape out = a;
  for (size_t d = 0; d < a.rank(); ++d) {
    if (!(a[d] == b[d])) out[d] = Dim::unknown();
  }
  return out;
}

void require_inputs(const ir::Graph& body, size_t count, std::string_view what) {
  base::require(body.inputs().size() == count, what, " takes ", body.inputs().size(), " inputs, gets ",
                count);
}

Types infer_if(const NodeView& n) {
  const ir::GraphPtr yes = n.attrs.get_graph("then_branch"), no = n.attrs.get_graph("else_branch");
  base::require(n.in[0].dtype == DType::boolean, "if: the condition must be boolean");
  require_inputs(*yes, captures(n), "if: then_branch");
  require_inputs(*no, captures(n), "if: else_branch");
  Types out = output_types(*yes);
  const Types other = output_types(*no);
  base::require(out.size() == other.size() && out.size() >= n.out_count, "if: the branches give ", out.size(),
                " and ", other.size(), " results, ", n.out_count, " are asked for");
  for (size_t i = 0; i < out.size(); ++i) {
    base::require(out[i].dtype == other[i].dtype, "if: result ", i, " is ", name_of(out[i].dtype), " or ",
                  name_of(other[i].dtype));
    out[i].shape = either(out[i].shape, other[i].shape);
  }
  return out;
}

Shape stacked(const Shape& element, Dim count, size_t axis) {
  if (!element.has_rank()) return Shape::unknown_rank();
  DimList dims = element.dims();
  base::require(axis <= dims.size(), "scan: output axis ", axis, " is outside a rank of ", dims.size() + 1);
  dims.insert(dims.begin() + static_cast<int64_t>(axis), std::move(count));
  return Shape(std::move(dims));
}

/// Operands: trip count, condition, carried values, captures. Body inputs: iteration, condition, carried,
/// captures. Body outputs: condition, carried, then one value per scanned result.
Types infer_loop(const NodeView& n) {
  const ir::GraphPtr body = n.attrs.get_graph("body");
  base::require(n.in.size() >= 2 + captures(n), "loop: ", n.in.size(), " operands are too few");
  const size_t carried = n.in.size() - 2 - captures(n);
  require_inputs(*body, 2 + carried + captures(n), "loop: the body");
  const Types inner = output_types(*body);
  base::require(inner.size() >= 1 + carried && inner.size() - 1 >= n.out_count, "loop: the body gives ",
                inner.size(), " results for ", carried, " carried values and ", n.out_count, " results");
  Types out;
  for (size_t i = 0; i < carried; ++i) {
    // A carried value may change its extents in each iteration; after no iterations it is the operand.
    base::require(inner[1 + i].dtype == n.in[2 + i].dtype, "loop: carried value ", i, " changes its type");
    out.push_back({n.in[2 + i].dtype, either(n.in[2 + i].shape, inner[1 + i].shape)});
  }
  for (size_t i = 1 + carried; i < inner.size(); ++i) {
    out.push_back({inner[i].dtype, stacked(inner[i].shape, Dim::unknown(), 0)});
  }
  return out;
}

/// Operands: state values, num_scan_inputs scanned tensors, captures. Body: state, one slice of each,
/// captures -> state, one slice of each scanned result.
Types infer_scan(const NodeView& n) {
  const ir::GraphPtr body = n.attrs.get_graph("body");
  const int64_t asked = n.attrs.need_int("num_scan_inputs");
  base::require(asked >= 1 && asked <= static_cast<int64_t>(n.in.size() - captures(n)),
                "scan: num_scan_inputs = ", asked);
  const size_t scanned = static_cast<size_t>(asked);
  const size_t states = n.in.size() - captures(n) - scanned;
  require_inputs(*body, n.in.size(), "scan: the body");
  const Types inner = output_types(*body);
  base::require(inner.size() >= states && inner.size() >= n.out_count,
                "scan: the body gives too few results");
  const std::vector<int64_t> in_axes = n.attrs.get_ints("scan_input_axes");
  Dim length = Dim::unknown();
  const Shape& first = n.in[states].shape;
  if (first.has_rank()) length = first[ir::normal_axis(in_axes.empty() ? 0 : in_axes[0], first.rank())];
  const std::vector<int64_t> out_axes = n.attrs.get_ints("scan_output_axes");
  Types out;
  for (size_t i = 0; i < states; ++i) out.push_back({inner[i].dtype, either(n.in[i].shape, inner[i].shape)});
  for (size_t i = states; i < inner.size(); ++i) {
    const size_t k = i - states;
    const int64_t axis = k < out_axes.size() ? out_axes[k] : 0;
    const bool has_rank = inner[i].shape.has_rank();
    const size_t at = has_rank ? ir::normal_axis(axis, inner[i].shape.rank() + 1) : 0;
    out.push_back({inner[i].dtype, stacked(inner[i].shape, length, at)});
  }
  return out;
}

ir::OpSchema schema(std::string name, std::string onnx, std::string doc, ir::InferFn infer) {
  ir::OpSchema s{.name = std::move(name),
                 .doc = std::move(doc),
                 .why_no_cut = "its subgraphs run whole",
                 .max_in = ir::kVariadic,
                 .max_out = ir::kVariadic};
  s.infer = std::move(infer);
  s.onnx = std::move(onnx);
  s.is_control = true;
  s.why_no_grad = "its subgraphs run one after the other by data; a graph that is trained has none";
  s.attrs = {
      {"captures", "int", "trailing operands that are outer values, read by the subgraphs' last inputs"}};
  return s;
}

}  // namespace

std::vector<ir::OpDef> control_ops() {
  std::vector<ir::OpDef> ops;
  ops.push_back(
      {schema("if", "If", "the results of then_branch or else_branch by the condition", infer_if), {}});
  ops.back().schema.attrs.push_back({"then_branch", "graph", "inputs: the captures"});
  ops.back().schema.attrs.push_back({"else_branch", "graph", "inputs: the captures"});
  ops.push_back(
      {schema("loop", "Loop", "runs body up to `trips` times while its condition holds", infer_loop), {}});
  ops.back().schema.min_in = 0;
  ops.back().schema.attrs.push_back(
      {"body", "graph", "(iteration, condition, carried, captures) -> (condition, carried, scanned)"});
  ops.push_back(
      {schema("scan", "Scan", "runs body over the slices of the scanned operands", infer_scan), {}});
  for (const char* name :
       {"scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions"}) {
    ops.back().schema.attrs.push_back({name, "ints", "one per scanned value, default 0"});
  }
  ops.back().schema.attrs.push_back({"num_scan_inputs", "int", "required"});
  ops.back().schema.attrs.push_back({"body", "graph", "(states, slices, captures) -> (states, slices)"});
  return ops;
}

}  // namespace trireme::ops
