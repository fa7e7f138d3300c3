// The messages of an ONNX file as plain structs that look into the file's bytes; nothing is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::model::onnx {

struct GraphProto;

struct StringPair {
  std::string_view key, value;
};

/// Header of a tensor. The typed fields (float_data …) stay in `message` and are read when the tensor is
/// made.
struct TensorProto {
  std::string_view message;  ///< the whole encoded TensorProto
  std::string_view name;
  std::vector<int64_t> dims;
  int32_t data_type = 0;  ///< TensorProto.DataType
  std::optional<std::string_view> raw_data;
  bool is_external = false;
  std::vector<StringPair> external_data;
};

struct SparseTensorProto {
  TensorProto values, indices;
  std::vector<int64_t> dims;
};

struct DimProto {
  std::optional<int64_t> value;
  std::string_view param;
};

/// What a TypeProto says: a dense tensor, or something that is refused by this name.
struct TypeProto {
  std::string_view
      kind;  ///< "tensor", "sequence", "map", "optional", "sparse tensor", "opaque", "" if not given
  int32_t elem_type = 0;
  bool has_shape = false;
  std::vector<DimProto> dims;
};

struct ValueInfoProto {
  std::string_view name;
  TypeProto type;
};

/// AttributeProto.AttributeType.
enum class AttrKind : int32_t {
  undefined = 0,
  real = 1,
  integer = 2,
  text = 3,
  tensor = 4,
  graph = 5,
  reals = 6,
  integers = 7,
  texts = 8,
  tensors = 9,
  graphs = 10,
  sparse_tensor = 11,
  sparse_tensors = 12,
  type = 13,
  types = 14,
};

struct AttributeProto {
  std::string_view name, ref_attr_name;
  AttrKind kind = AttrKind::undefined;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
  std::shared_ptr<TensorProto> t;
  std::shared_ptr<SparseTensorProto> sparse;
  std::shared_ptr<GraphProto> g;
};

struct NodeProto {
  std::string_view name, op_type, domain, overload;
  std::vector<std::string_view> input, output;
  std::vector<AttributeProto> attribute;
};

struct GraphProto {
  std::string_view name;
  std::vector<NodeProto> node;
  std::vector<TensorProto> initializer;
  std::vector<SparseTensorProto> sparse_initializer;
  std::vector<ValueInfoProto> input, output, value_info;
};

struct OpsetId {
  std::string_view domain;
  int64_t version = 0;
};

/// A local function: its body replaces each node that calls it.
struct FunctionProto {
  std::string_view name, domain, overload;
  std::vector<std::string_view> input, output, attribute;
  std::vector<AttributeProto> attribute_proto;  ///< attributes with defaults
  std::vector<NodeProto> node;
  std::vector<OpsetId> opset_import;
};

struct ModelProto {
  int64_t ir_version = 0;
  std::string_view producer_name, producer_version, domain;
  int64_t model_version = 0;
  std::vector<OpsetId> opset_import;
  std::vector<StringPair> metadata;
  std::vector<FunctionProto> functions;
  GraphProto graph;
};

/// Reads a model. The result looks into `bytes`, which must outlive it. Memory is bounded by a small multiple
/// of the input. Throws invalid_argument for bytes that are not an ONNX model.
ModelProto parse_model(std::string_view bytes);

/// Reads one TensorProto, the content of the .pb files of test data.
TensorProto parse_tensor(std::string_view bytes);

}  // namespace trireme::model::onnx
