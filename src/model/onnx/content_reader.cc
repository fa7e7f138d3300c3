// Reads tensors and attributes of an ONNX file in the form that graph nodes take.
#include "model/onnx/content_reader.h"

#include <algorithm>

namespace trireme::model::onnx {

using tensor::Tensor;

const AttributeProto* resolve(const AttributeProto& attribute, const CallAttrs* call) {
  if (attribute.ref_attr_name.empty()) return &attribute;
  base::require(call != nullptr, "attribute '", attribute.name, "' refers to '", attribute.ref_attr_name,
                "' outside a function");
  const auto at = call->find(attribute.ref_attr_name);
  return at == call->end() ? nullptr : at->second;
}

Tensor ContentReader::tensor(const TensorProto& proto) {
  const auto at = tensors_.find(proto.message.data());
  if (at != tensors_.end()) return at->second;
  return tensors_[proto.message.data()] = make_tensor(proto, source_);
}

std::optional<ir::AttrValue> ContentReader::attr(const AttributeProto& a) {
  switch (a.kind) {
    case AttrKind::integer: return a.i;
    case AttrKind::real: return static_cast<double>(a.f);
    case AttrKind::text: return std::string(a.s);
    case AttrKind::integers: return a.ints;
    case AttrKind::reals: return std::vector<double>(a.floats.begin(), a.floats.end());
    case AttrKind::texts: return std::vector<std::string>(a.strings.begin(), a.strings.end());
    case AttrKind::tensor:
      base::require(a.t != nullptr, "attribute '", a.name, "' has no tensor");
      return tensor(*a.t);
    case AttrKind::sparse_tensor:
      base::require(a.sparse != nullptr, "attribute '", a.name, "' has no sparse tensor");
      return dense(*a.sparse);
    case AttrKind::graph: return std::nullopt;  // read with its captures, see add_bodies
    case AttrKind::undefined: return std::nullopt;
    default:
      base::fail_unsupported("attribute '", a.name, "' has kind ", static_cast<int>(a.kind),
                             ", which no supported operator takes");
  }
}

ir::Attrs ContentReader::attrs(const NodeProto& node, const CallAttrs* call) {
  constexpr size_t kMaxAttrs = 1000;  // attributes are kept in a sorted list
  base::require(node.attribute.size() <= kMaxAttrs, "the node has ", node.attribute.size(), " attributes");
  ir::Attrs list;
  for (const AttributeProto& given : node.attribute) {
    const AttributeProto* a = resolve(given, call);
    if (a == nullptr) continue;
    if (auto value = attr(*a)) list.set(std::string(given.name), std::move(*value));
  }
  return list;
}

Tensor ContentReader::constant(const NodeProto& node, const CallAttrs* call) {
  for (const AttributeProto& given : node.attribute) {
    const AttributeProto* a = resolve(given, call);
    if (a == nullptr) continue;
    const auto count = static_cast<int64_t>(std::max(a->ints.size(), a->floats.size()));
    if (given.name == "value" && a->t) return tensor(*a->t);
    if (given.name == "sparse_value" && a->sparse) return dense(*a->sparse);
    if (given.name == "value_int") return Tensor::scalar<int64_t>(a->i);
    if (given.name == "value_float") return Tensor::scalar<float>(a->f);
    if (given.name == "value_ints") return Tensor::from<int64_t>({count}, a->ints);
    if (given.name == "value_floats") return Tensor::from<float>({count}, a->floats);
    if (given.name.starts_with("value_string")) base::fail_unsupported("string tensors are not supported");
  }
  base::fail_invalid("the constant has no value");
}

}  // namespace trireme::model::onnx
