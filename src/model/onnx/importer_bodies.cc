// Bodies of If, Loop and Scan: each becomes a graph that takes captured outer values as explicit last inputs.
#include <unordered_set>

#include "model/onnx/importer.h"

namespace trireme::model::onnx {

using ir::ValueId;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

namespace {

using NameSet = std::unordered_set<std::string_view>;

/// Appends to `out` the names that `graph` reads from outside, in the order of first use, and adds them to
/// `seen`; skips those that are in `seen` already.
void collect_free(const GraphProto& graph, std::vector<std::string_view>& out, NameSet& seen) {
  NameSet defined;
  for (const ValueInfoProto& info : graph.input) defined.insert(info.name);
  for (const TensorProto& t : graph.initializer) defined.insert(t.name);
  for (const SparseTensorProto& t : graph.sparse_initializer) defined.insert(t.values.name);
  for (const NodeProto& node : graph.node) {
    for (std::string_view name : node.output) defined.insert(name);
  }
  const auto read = [&](std::string_view name) {
    if (!name.empty() && !defined.contains(name) && seen.insert(name).second) out.push_back(name);
  };
  for (const NodeProto& node : graph.node) {
    for (std::string_view name : node.input) read(name);
    for (const AttributeProto& a : node.attribute) {
      if (a.g == nullptr) continue;
      std::vector<std::string_view> inner;
      NameSet inner_seen;
      collect_free(*a.g, inner, inner_seen);
      for (std::string_view name : inner) read(name);
    }
  }
  for (const ValueInfoProto& info : graph.output) read(info.name);
}

/// The shape of a scanned operand without its scan axis.
Shape without_axis(const Shape& shape, int64_t axis) {
  if (!shape.has_rank() || shape.rank() == 0) return shape;
  std::vector<tensor::Dim> dims = shape.dims();
  dims.erase(dims.begin() + static_cast<int64_t>(ir::normal_axis(axis, dims.size())));
  return Shape(std::move(dims));
}

}  // namespace

std::vector<std::string_view> free_names(const GraphProto& graph) {
  std::vector<std::string_view> out;
  NameSet seen;
  collect_free(graph, out, seen);
  return out;
}

std::vector<Importer::BodyInput> Importer::body_inputs(const GraphProto& body, const PendingNode& pending,
                                                       const ir::Graph& outer) {
  const bool is_scan = pending.op_type == "Scan", is_loop = pending.op_type == "Loop";
  // Scan of opset 8 has sequence_lens before its operands and a batch dimension; rewriting it is not worth
  // the code.
  if (is_scan && pending.opset < 9)
    base::fail_unsupported("Scan of opset 8 is not supported, export with opset 9");
  const int64_t scans = is_scan ? pending.attrs.need_int("num_scan_inputs") : 0;
  const auto axes = pending.attrs.get_ints("scan_input_axes");
  const int64_t states = static_cast<int64_t>(body.input.size()) - scans;
  base::require(scans >= 0 && states >= 0, "the body has fewer inputs than are scanned");
  std::vector<BodyInput> inputs;
  for (size_t i = 0; i < body.input.size(); ++i) {
    BodyInput input{&body.input[i], {}};
    // Operands of the node are in the order of the body's inputs, but Loop's first two inputs are iteration
    // number and condition.
    const ValueId operand = pending.input(i);
    if (is_loop && i < 2) {
      input.type = {i == 0 ? DType::i64 : DType::boolean, Shape{}};
    } else if (input.info->type.kind.empty() || !input.info->type.has_shape) {
      base::require(operand != ir::kNoValue, "the body has more inputs than the node has operands");
      input.type = {outer.type(operand).dtype, Shape::unknown_rank()};
      const auto scan = static_cast<int64_t>(i) - states;
      if (is_scan && scan < 0) input.type.shape = outer.type(operand).shape;
      if (is_scan && scan >= 0) {
        const int64_t axis = static_cast<size_t>(scan) < axes.size() ? axes[static_cast<size_t>(scan)] : 0;
        input.type.shape = without_axis(outer.type(operand).shape, axis);
      }
    } else {
      input.type = type_from(*input.info);
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

ir::GraphPtr Importer::import_body(const GraphProto& body, const std::vector<BodyInput>& inputs,
                                   const std::vector<std::string_view>& captures, const Scope& outer) {
  base::require(++depth_ <= 32, "bodies and functions are nested deeper than 32");
  auto graph = std::make_shared<ir::Graph>();
  graph->name = std::string(body.name);
  Scope scope{.graph = *graph,
              .opsets = outer.opsets,
              .call_attrs = outer.call_attrs,
              .keeps_names = false,
              .prefix = outer.prefix};
  for (const BodyInput& input : inputs) {
    scope.bind(input.info->name, graph->add_input(std::string(input.info->name), input.type));
  }
  for (std::string_view name : captures) {
    const ValueId id = outer.lookup(name);
    const tensor::Tensor* known = outer.graph.known(id);
    // Weights and constants are shared with the body instead of passed as inputs. Weights keep their names.
    const ir::Value& v = outer.graph.value(id);
    const bool is_weight = v.kind == ir::ValueKind::param || !outer.keeps_names;
    scope.bind(name, known != nullptr ? graph->add_constant(*known, is_weight ? v.name : std::string())
                                      : graph->add_input(std::string(name), outer.graph.type(id)));
  }
  add_initializers(body, scope);
  add_nodes(body.node, scope);
  add_outputs(body, scope);
  graph->sort();
  --depth_;
  return graph;
}

void Importer::add_bodies(const NodeProto& node, PendingNode& pending, Scope& scope) {
  std::vector<std::pair<std::string, const GraphProto*>> bodies;
  std::vector<std::string_view> captures;
  NameSet seen;
  for (const AttributeProto& given : node.attribute) {
    const AttributeProto* a = resolve(given, scope.call_attrs);
    if (a == nullptr || a->g == nullptr) continue;
    bodies.emplace_back(given.name, a->g.get());
    for (std::string_view name : free_names(*a->g)) {
      if (seen.insert(name).second) captures.push_back(name);
    }
  }
  std::vector<ValueId> passed;
  for (std::string_view name : captures) {
    const ValueId id = scope.lookup(name);
    base::require(id != ir::kNoValue, "a body reads the absent value '", name, "'");
    if (strings_.has(id, scope.graph)) base::fail_unsupported("a body reads the string value '", name, "'");
    if (scope.graph.known(id) == nullptr) passed.push_back(id);
  }
  for (const auto& [name, body] : bodies) {
    const auto inputs = body_inputs(*body, pending, scope.graph);
    pending.attrs.set(name, import_body(*body, inputs, captures, scope));
  }
  // Loop's absent optional operands are kept as placeholders before the captures.
  if (pending.op_type == "Loop" && pending.in.size() < 2) pending.in.resize(2, ir::kNoValue);
  pending.attrs.set("captures", static_cast<int64_t>(passed.size()));
  pending.in.insert(pending.in.end(), passed.begin(), passed.end());
}

}  // namespace trireme::model::onnx
