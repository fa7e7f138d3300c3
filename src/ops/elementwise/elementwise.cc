// Common parts of elementwise ops: schemas from rows of the table, and the broadcasting reference kernel.
#include "ops/elementwise/elementwise.h"

#include "ops/cut.h"
#include "ops/grad.h"

namespace trireme::ops {

std::string no_type(tensor::DType dtype) {
  return base::concat("does not take elements of type ", name_of(dtype));
}

std::vector<tensor::Dims> all_in_dims(const ir::NodeView& node) {
  std::vector<tensor::Dims> dims;
  for (size_t i = 0; i < node.in.size(); ++i) dims.push_back(node.in_dims(i));
  return dims;
}

tensor::Shape broadcast_all(const ir::NodeView& node) {
  tensor::Shape shape = node.in[0].shape;
  for (size_t i = 1; i < node.in.size(); ++i) shape = ir::broadcast(shape, node.in[i].shape);
  return shape;
}

Params params_of(const ElementwiseRow& row, const ir::Attrs& attrs) {
  Params params{};
  for (size_t i = 0; i < row.attrs.size(); ++i) {
    const ElementwiseAttr& a = row.attrs[i];
    params[i] = a.is_int ? static_cast<double>(attrs.get_int(a.name, static_cast<int64_t>(a.fallback)))
                         : attrs.get_float(a.name, a.fallback);
  }
  if (row.divides) params[0] = 1;
  return params;
}

namespace {

tensor::TensorType infer_row(const ElementwiseRow& row, const ir::NodeView& n) {
  for (size_t i = 1; i < n.in.size(); ++i) {
    base::require(n.in[i].dtype == n.in[0].dtype, "op '", row.name, "' takes operands of one type, got ",
                  name_of(n.in[0].dtype), " and ", name_of(n.in[i].dtype));
  }
  base::require(row.row(n.in[0].dtype) != nullptr, "op '", row.name, "' ", no_type(n.in[0].dtype));
  return {row.is_predicate ? tensor::DType::boolean : n.in[0].dtype, broadcast_all(n)};
}

ir::Cost cost_row(double flop, const ir::NodeView& n) {
  ir::Cost cost;
  for (const auto* types : {&n.in, &n.out}) {
    for (const tensor::TensorType& t : *types) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  }
  cost.flop = flop * static_cast<double>(n.out[0].shape.elements().value_or(0));
  return cost;
}

/// The masks of operands in the form of CutRule::linear.
std::vector<uint32_t> masks_of(LinearIn linear) {
  switch (linear) {
    case LinearIn::none: return {};
    case LinearIn::first: return {0b1};
    case LinearIn::each: return {0b01, 0b10};
    case LinearIn::jointly: return {0xffffffffu};
  }
  return {};
}

}  // namespace

ir::OpSchema elementwise_schema(const ElementwiseRow& row) {
  ir::OpSchema s{
      .name = std::string(row.name), .doc = std::string(row.doc), .min_in = row.min_in, .max_in = row.max_in};
  s.precision = row.precision;
  s.moves = row.moves;
  s.dims = row.max_in == 2 ? "...,...->..." : "...->...";
  for (const ElementwiseAttr& a : row.attrs) {
    s.attrs.push_back(
        {std::string(a.name), a.is_int ? "int" : "float", base::concat("default ", a.fallback)});
  }
  s.infer = [&row](const ir::NodeView& n) { return std::vector{infer_row(row, n)}; };
  const double flop = row.flop * static_cast<double>(row.max_in > 2 ? 2 : 1);
  s.cost = [flop](const ir::NodeView& n) { return cost_row(flop, n); };
  s.why_no_grad = row.gradient.why_none;
  if (row.gradient.rule != nullptr) s.grad = rule(row.gradient.rule);
  if (row.gradient.row != nullptr) {
    s.grad = rule([name = s.name + "_grad", of_result = row.gradient.of_result](GradBuilder& g) -> Gradients {
      return {g.op(name, {g.grad(), of_result ? g.out() : g.in(0)}, g.attrs())};
    });
  }
  s.onnx = row.onnx;
  s.cut = elementwise_cut(masks_of(row.gradient.linear));
  return s;
}

}  // namespace trireme::ops
