// fused_elementwise: its schema, the text form of its steps, and its expansion into single ops.
#include "ops/elementwise/fused.h"

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::ValueId;

size_t operand_count(std::string_view function) {
  if (function == "muladd") return 3;
  if (const size_t operands = vector_operands(function); operands > 0) return operands;
  base::fail_invalid("fused_elementwise: no function '", function, "'");
}

bool is_reference(const std::string& text, std::string_view kinds) {
  return text.size() >= 2 && kinds.find(text[0]) != std::string_view::npos && text.size() <= 4 &&
         std::all_of(text.begin() + 1, text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The row of a unary function or of a derivative.
const ElementwiseRow* row_of(std::string_view name) {
  for (const auto* rows : {&unary_rows(), &unary_grad_rows()}) {
    for (const ElementwiseRow& row : *rows) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

ValueId scalar(ir::Graph& g, double v) {
  return g.add_constant(tensor::Tensor::scalar(static_cast<float>(v)));
}

/// Adds the plain nodes of one step.
ValueId expand_step(ir::Graph& g, const FusedStepText& step, const std::vector<ValueId>& in,
                    const Params& p) {
  const ir::OpTable& ops = table();
  if (step.function == "muladd")
    return g.add1(ops.need("add"), {g.add1(ops.need("mul"), {in[0], in[1]}), in[2]});
  if (step.function == "gelu_tanh")
    return g.add1(ops.need("gelu"), in, {{"approximate", std::string("tanh")}});
  if (step.function == "gelu_tanh_grad")
    return g.add1(ops.need("gelu_grad"), in, {{"approximate", std::string("tanh")}});
  if (step.function == "clip_grad")
    return g.add1(ops.need("clip_grad"), {in[0], in[1], scalar(g, p[0]), scalar(g, p[1])});
  if (step.function == "pow_scalar") return g.add1(ops.need("pow"), {in[0], scalar(g, p[0])});
  if (step.function == "clip") return g.add1(ops.need("clip"), {in[0], scalar(g, p[0]), scalar(g, p[1])});
  ir::Attrs attrs;
  if (const ElementwiseRow* row = row_of(step.function)) {
    for (size_t i = 0; i < row->attrs.size(); ++i) attrs.set(std::string(row->attrs[i].name), p[i]);
  }
  return g.add1(ops.need(step.function), in, std::move(attrs));
}

/// The types of the results from the attribute `results`; f32 if it is absent.
std::vector<tensor::DType> result_types(const ir::Attrs& attrs, size_t count) {
  std::vector<tensor::DType> types(count, tensor::DType::f32);
  const std::vector<std::string> names = attrs.get_strings("results");
  base::require(names.empty() || names.size() == count, "fused_elementwise: ", names.size(), " types for ",
                count, " results");
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "f16") types[i] = tensor::DType::f16;
    if (names[i] == "bf16") types[i] = tensor::DType::bf16;
    base::require(names[i] == name_of(types[i]), "fused_elementwise: no result of type ", names[i]);
  }
  return types;
}

/// The ONNX number of a type, for casts.
int64_t onnx_number(tensor::DType t) {
  return t == tensor::DType::f16 ? 10 : t == tensor::DType::bf16 ? 16 : 1;
}

std::vector<ValueId> expand_fused(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  const std::vector<std::string> steps = node.attrs.get_strings("steps");
  const std::vector<double> params = node.attrs.get_floats("params"),
                            constants = node.attrs.get_floats("constants");
  std::map<std::string, ValueId> values;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const bool is_wide = g.type(node.in[i]).dtype == tensor::DType::f32;
    values[base::concat("i", i)] =
        is_wide ? node.in[i] : g.add1(table().need("cast"), {node.in[i]}, {{"to", int64_t{1}}});
  }
  for (size_t i = 0; i < constants.size(); ++i) values[base::concat("c", i)] = scalar(g, constants[i]);
  for (size_t s = 0; s < steps.size(); ++s) {
    const FusedStepText step = parse_fused_step(steps[s]);
    std::vector<ValueId> in;
    for (const std::string& o : step.operands) in.push_back(values.at(o));
    const Params p = params.size() >= 2 * s + 2 ? Params{params[2 * s], params[2 * s + 1]} : Params{};
    values[step.dst] = expand_step(g, step, in, p);
  }
  std::vector<ValueId> out;
  const std::vector<tensor::DType> types = result_types(node.attrs, node.out.size());
  for (size_t i = 0; i < node.out.size(); ++i) {
    ValueId y = values.at(base::concat("o", i));
    if (types[i] != tensor::DType::f32)
      y = g.add1(table().need("cast"), {y}, {{"to", onnx_number(types[i])}});
    out.push_back(y);
  }
  return out;
}

/// Infers the shape of every result by following the steps, and checks every reference.
std::vector<tensor::TensorType> infer_fused(const ir::NodeView& n) {
  std::map<std::string, tensor::Shape> shapes;
  base::require(n.in.size() <= kMaxFusedInputs && n.out_count <= kMaxFusedOutputs,
                "fused_elementwise: too many operands or results");
  for (size_t i = 0; i < n.in.size(); ++i) {
    const tensor::DType type = n.in[i].dtype;
    base::require(type == tensor::DType::f32 || type == tensor::DType::f16 || type == tensor::DType::bf16,
                  "fused_elementwise computes f32, got ", name_of(type));
    shapes[base::concat("i", i)] = n.in[i].shape;
  }
  const size_t constants = n.attrs.get_floats("constants").size();
  for (size_t i = 0; i < constants; ++i) shapes[base::concat("c", i)] = tensor::Shape{};
  for (const std::string& text : n.attrs.get_strings("steps")) {
    const FusedStepText step = parse_fused_step(text);
    tensor::Shape shape;
    for (const std::string& o : step.operands) {
      const auto at = shapes.find(o);
      base::require(at != shapes.end(), "fused_elementwise: '", text, "' reads ", o, " before it is written");
      shape = ir::broadcast(shape, at->second);
    }
    shapes[step.dst] = shape;
  }
  std::vector<tensor::TensorType> out;
  const std::vector<tensor::DType> types = result_types(n.attrs, n.out_count);
  for (size_t i = 0; i < n.out_count; ++i) {
    const auto at = shapes.find(base::concat("o", i));
    base::require(at != shapes.end(), "fused_elementwise: no step writes o", i);
    out.push_back({types[i], at->second});
  }
  return out;
}

double flop_of(std::string_view function) {
  if (const ElementwiseRow* row = row_of(function)) return row->flop;
  if (function == "gelu" || function == "gelu_tanh") return 29;
  if (function == "gelu_grad" || function == "gelu_tanh_grad") return 34;
  return function == "muladd" || function == "clip" ? 2 : function == "pow_scalar" ? 8 : 1;
}

ir::Cost cost_fused(const ir::NodeView& n) {
  ir::Cost cost;
  for (const auto* types : {&n.in, &n.out}) {
    for (const tensor::TensorType& t : *types) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  }
  double per_element = 0;
  for (const std::string& text : n.attrs.get_strings("steps"))
    per_element += flop_of(parse_fused_step(text).function);
  cost.flop = per_element * static_cast<double>(n.out[0].shape.elements().value_or(0));
  return cost;
}

}  // namespace

std::string to_string(const FusedStepText& step) {
  std::string text = step.dst + " " + step.function;
  for (const std::string& o : step.operands) text += " " + o;
  return text;
}

FusedStepText parse_fused_step(const std::string& text) {
  std::istringstream words(text);
  FusedStepText step;
  words >> step.dst >> step.function;
  for (std::string o; words >> o;) step.operands.push_back(o);
  base::require(is_reference(step.dst, "ro"), "fused_elementwise: '", text,
                "' does not write a register or result");
  base::require(step.operands.size() == operand_count(step.function), "fused_elementwise: '", text, "' has ",
                step.operands.size(), " operands");
  for (const std::string& o : step.operands) {
    base::require(is_reference(o, "iroc"), "fused_elementwise: '", o, "' in '", text, "' is no reference");
  }
  return step;
}

std::optional<FusedFunction> fused_function(std::string_view op, const ir::NodeView& n) {
  const bool is_f32 =
      std::all_of(n.in.begin(), n.in.end(), [](const auto& t) { return t.dtype == tensor::DType::f32; });
  if (!is_f32 || n.out_count != 1) return std::nullopt;
  const auto number = [&n](size_t i) -> std::optional<double> {
    if (n.value(i) == nullptr || n.value(i)->elements() != 1) return std::nullopt;
    return n.value(i)->to_doubles()[0];
  };
  if (op == "gelu") {
    return FusedFunction{n.attrs.get_string("approximate", "none") == "tanh" ? "gelu_tanh" : "gelu"};
  }
  if (op == "pow") {
    const auto exponent = number(1);
    if (!exponent || n.in[1].shape.rank() > 1) return std::nullopt;
    return FusedFunction{"pow_scalar", {*exponent, 0}};
  }
  if (op == "clip" || op == "clip_grad") {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const size_t low = op == "clip" ? 1 : 2;
    if ((n.present(low) && !number(low)) || (n.present(low + 1) && !number(low + 1))) return std::nullopt;
    return FusedFunction{
        std::string(op), {number(low).value_or(-kInfinity), number(low + 1).value_or(kInfinity)}, low};
  }
  const ElementwiseRow* row = row_of(op);
  const size_t operands = vector_operands(op);
  if (row != nullptr && operands == 1) return FusedFunction{std::string(op), params_of(*row, n.attrs)};
  if (n.in.size() != 2) return std::nullopt;
  if (op == "gelu_grad") {
    const bool is_tanh = n.attrs.get_string("approximate", "none") == "tanh";
    return FusedFunction{is_tanh ? "gelu_tanh_grad" : "gelu_grad", {}, 2};
  }
  if (op == "sum") return FusedFunction{"add", {}, 2};
  if (operands != 2) return std::nullopt;
  return FusedFunction{std::string(op), row != nullptr ? params_of(*row, n.attrs) : Params{}, 2};
}

ir::OpSchema fused_elementwise_schema() {
  return {
      .name = "fused_elementwise",
      .doc =
          "a chain of elementwise functions over f32 in one pass over memory; operands of f32, f16 or bf16 "
          "broadcast",
      .dims = "...->...",
      .cut = elementwise_cut(),
      .min_in = 1,
      .max_in = kMaxFusedInputs,
      .max_out = kMaxFusedOutputs,
      .attrs = {{"steps", "strings", "one step each: \"dst function operand...\""},
                {"params", "floats", "two per step: the function's parameters"},
                {"constants", "floats", "values of the references c0, c1, ..."},
                {"results", "strings", "types of the results: f32 (default), f16, bf16"}},
      .infer = infer_fused,
      .expand = expand_fused,
      .cost = cost_fused,
      .grad = grad_by_expand()};
}

}  // namespace trireme::ops
