// Tensors and attributes of an ONNX file, as the nodes of a graph take them.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/attrs.h"
#include "model/onnx/tensor_proto.h"

namespace trireme::model::onnx {

/// Attributes of the function call being inlined, by name.
using CallAttrs = std::map<std::string_view, const AttributeProto*>;

/// The attribute itself, or what the function call gives for the name that it refers to; null: left out.
/// `call` is null outside a function.
const AttributeProto* resolve(const AttributeProto& attribute, const CallAttrs* call);

/// Each tensor of the file is made once, however often the function around it is inlined.
class ContentReader {
 public:
  explicit ContentReader(TensorSource source) : source_(std::move(source)) {}

  tensor::Tensor tensor(const TensorProto& proto);
  tensor::Tensor dense(const SparseTensorProto& proto) { return make_dense(proto, source_); }
  /// All attributes but graphs, which are read with what they capture.
  ir::Attrs attrs(const NodeProto& node, const CallAttrs* call);
  /// What a node Constant holds.
  tensor::Tensor constant(const NodeProto& node, const CallAttrs* call);
  /// The files of external data that tensors look into.
  const auto& external_files() const { return source_.files; }

 private:
  std::optional<ir::AttrValue> attr(const AttributeProto& attribute);

  TensorSource source_;
  std::unordered_map<const char*, tensor::Tensor> tensors_;  // by the address of their message
};

}  // namespace trireme::model::onnx
