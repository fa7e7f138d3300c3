// FlexAttention of the preview domain: attention with the graphs that modify scores and probabilities inlined
// between its steps.
#include <cmath>

#include "model/onnx/importer.h"

namespace trireme::model::onnx {

using ir::ValueId;
using tensor::DType;

/// Adds the nodes of `body`, which has one argument and one result, to the surrounding graph.
ValueId Importer::inline_graph(const GraphProto& body, ValueId argument, Scope& outer) {
  base::require(++depth_ <= 32, "bodies and functions are nested deeper than 32");
  base::require(body.input.size() == 1 && body.output.size() == 1,
                "the modifier graph must map one value to one");
  Scope scope{.graph = outer.graph,
              .opsets = outer.opsets,
              .call_attrs = outer.call_attrs,
              .keeps_names = false,
              .prefix = outer.prefix};
  for (std::string_view name : free_names(body)) scope.bind(name, outer.lookup(name));
  scope.bind(body.input[0].name, argument);
  add_initializers(body, scope);
  add_nodes(body.node, scope);
  --depth_;
  return scope.lookup(body.output[0].name);
}

std::vector<ValueId> Importer::add_flex_attention(const NodeProto& node, const PendingNode& n, Scope& scope) {
  Emitter e(scope.graph, n.from);
  base::require(n.has_input(0) && n.has_input(1) && n.has_input(2),
                "FlexAttention needs query, key and value");
  const ValueId q = n.in[0];
  const auto& q_shape = e.type(q).shape;
  const auto& k_shape = e.type(n.in[1]).shape;
  base::require(q_shape.rank() == 4 && k_shape.rank() == 4 && q_shape[1].is_static() &&
                    k_shape[1].is_static() && q_shape[3].is_static() && k_shape[1].value() > 0 &&
                    q_shape[1].value() % k_shape[1].value() == 0,
                "FlexAttention of query ", q_shape.to_string(), " and key ", k_shape.to_string());
  const int64_t heads = q_shape[1].value(), group = heads / k_shape[1].value();
  const double width = static_cast<double>(q_shape[3].value());
  /// Each key head serves `group` adjacent query heads: [batch, kv, seq, d] -> [batch, heads, seq, d].
  const auto repeat = [&](ValueId x) {
    if (group == 1) return x;
    const ValueId shape = e.emit("Concat",
                                 {e.emit("Shape", {x}, {{"start", int64_t{0}}, {"end", int64_t{1}}}),
                                  e.ints({heads}), e.emit("Shape", {x}, {{"start", int64_t{2}}})},
                                 {{"axis", int64_t{0}}});
    const ValueId wide =
        e.emit("Expand", {e.emit("Unsqueeze", {x, e.ints({2})}), e.ints({1, 1, group, 1, 1})});
    return e.emit("Reshape", {wide, shape});
  };
  const DType in_type = e.type(q).dtype;
  const int64_t precision = n.attrs.get_int(
      "softmax_precision", in_type == DType::f64 ? dtype_to_onnx(DType::f64) : dtype_to_onnx(DType::f32));
  const ValueId root = e.scalar_of(in_type, std::sqrt(n.attrs.get_float("scale", 1 / std::sqrt(width))));
  const ValueId keys = e.emit("Transpose", {e.emit("Mul", {repeat(n.in[1]), root})},
                              {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  ValueId scores = e.emit("MatMul", {e.emit("Mul", {q, root}), keys});
  scores = e.emit("Cast", {scores}, {{"to", precision}});
  const auto modify = [&](std::string_view name, ValueId x) {
    for (const AttributeProto& given : node.attribute) {
      const AttributeProto* a = given.name == name ? resolve(given, scope.call_attrs) : nullptr;
      if (a != nullptr && a->g != nullptr) return inline_graph(*a->g, x, scope);
    }
    return x;
  };
  scores = modify("score_mod", scores);
  const ValueId chances = modify("prob_mod", e.emit("Softmax", {scores}, {{"axis", int64_t{-1}}}));
  const ValueId values = e.emit("Cast", {repeat(n.in[2])}, {{"to", precision}});
  return {e.emit("Cast", {e.emit("MatMul", {chances, values})}, {{"to", int64_t{dtype_to_onnx(in_type)}}})};
}

}  // namespace trireme::model::onnx
