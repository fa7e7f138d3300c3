// Attributes of ONNX nodes, and nodes that are nothing but a constant.
#include <algorithm>

#include "model/onnx/importer.h"

namespace trireme::model::onnx {

using tensor::Tensor;

/// The attribute itself, or what the function call gives for the name that it refers to; null: left out.
const AttributeProto* Importer::resolve(const AttributeProto& attribute, const Scope& scope) const {
  if (attribute.ref_attr_name.empty()) return &attribute;
  base::require(scope.call_attrs != nullptr, "attribute '", attribute.name, "' refers to '",
                attribute.ref_attr_name, "' outside a function");
  const auto at = scope.call_attrs->find(attribute.ref_attr_name);
  return at == scope.call_attrs->end() ? nullptr : at->second;
}

std::optional<ir::AttrValue> Importer::read_attr(const AttributeProto& a) {
  switch (a.kind) {
    case AttrKind::integer: return a.i;
    case AttrKind::real: return static_cast<double>(a.f);
    case AttrKind::text: return std::string(a.s);
    case AttrKind::integers: return a.ints;
    case AttrKind::reals: return std::vector<double>(a.floats.begin(), a.floats.end());
    case AttrKind::texts: return std::vector<std::string>(a.strings.begin(), a.strings.end());
    case AttrKind::tensor:
      base::require(a.t != nullptr, "attribute '", a.name, "' has no tensor");
      return tensor_of(*a.t);
    case AttrKind::sparse_tensor:
      base::require(a.sparse != nullptr, "attribute '", a.name, "' has no sparse tensor");
      return make_dense(*a.sparse, source_);
    case AttrKind::graph: return std::nullopt;  // read with its captures, see add_bodies
    case AttrKind::undefined: return std::nullopt;
    default:
      base::fail_unsupported("attribute '", a.name, "' has kind ", static_cast<int>(a.kind),
                             ", which no supported operator takes");
  }
}

ir::Attrs Importer::read_attrs(const NodeProto& node, const Scope& scope) {
  constexpr size_t kMaxAttrs = 1000;  // attributes are kept in a sorted list
  base::require(node.attribute.size() <= kMaxAttrs, "the node has ", node.attribute.size(), " attributes");
  ir::Attrs attrs;
  for (const AttributeProto& given : node.attribute) {
    const AttributeProto* a = resolve(given, scope);
    if (a == nullptr) continue;
    if (auto value = read_attr(*a)) attrs.set(std::string(given.name), std::move(*value));
  }
  return attrs;
}

Tensor Importer::constant_value(const NodeProto& node, const Scope& scope) {
  for (const AttributeProto& given : node.attribute) {
    const AttributeProto* a = resolve(given, scope);
    if (a == nullptr) continue;
    const auto count = static_cast<int64_t>(std::max(a->ints.size(), a->floats.size()));
    if (given.name == "value" && a->t) return tensor_of(*a->t);
    if (given.name == "sparse_value" && a->sparse) return make_dense(*a->sparse, source_);
    if (given.name == "value_int") return Tensor::scalar<int64_t>(a->i);
    if (given.name == "value_float") return Tensor::scalar<float>(a->f);
    if (given.name == "value_ints") return Tensor::from<int64_t>({count}, a->ints);
    if (given.name == "value_floats") return Tensor::from<float>({count}, a->floats);
    if (given.name.starts_with("value_string")) base::fail_unsupported("string tensors are not supported");
  }
  base::fail_invalid("the constant has no value");
}

bool Importer::add_constant_node(const NodeProto& node, Scope& scope) {
  if (node.op_type != "Constant" || (!node.domain.empty() && node.domain != "ai.onnx")) return false;
  base::require(node.output.size() == 1, "a constant has one output");
  std::string name = scope.keeps_names ? std::string(node.output[0]) : std::string();
  bind(scope, node.output[0], scope.graph.add_constant(constant_value(node, scope), std::move(name)));
  return true;
}

}  // namespace trireme::model::onnx
