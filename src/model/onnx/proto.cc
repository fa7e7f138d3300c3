// Reads ONNX messages with protozero, by the field numbers of onnx.proto.
#include "model/onnx/proto.h"

#include <protozero/pbf_reader.hpp>

#include "base/error.h"

namespace trireme::model::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

constexpr int kMaxGraphDepth = 32;         // nesting of graphs in attributes
constexpr int64_t kMaxMessages = 4 << 20;  // nodes, attributes, tensors of a file: bounds memory to ~2 GiB

/// Counts messages, so that a hostile file cannot cause allocations of hundreds of times its size.
struct Budget {
  int64_t messages = 0;
  int depth = 0;
  void spend() {
    base::require(++messages <= kMaxMessages, "the file has more than ", kMaxMessages, " messages");
  }
};

/// protozero only asserts the wire type, which a file may state wrongly, so it is checked before each read.
void want(pbf_reader& r, pbf_wire_type type) {
  base::require(r.wire_type() == type, "field ", r.tag(), " has wire type ", static_cast<int>(r.wire_type()),
                ", not ", static_cast<int>(type));
}

std::string_view text(pbf_reader& r) {
  want(r, pbf_wire_type::length_delimited);
  const protozero::data_view view = r.get_view();
  return {view.data(), view.size()};
}

pbf_reader message(pbf_reader& r, Budget& budget) {
  budget.spend();
  const std::string_view bytes = text(r);
  return pbf_reader(bytes.data(), bytes.size());
}

int64_t integer(pbf_reader& r) {
  want(r, pbf_wire_type::varint);
  return r.get_int64();
}

int32_t small_integer(pbf_reader& r) {
  const int64_t v = integer(r);
  base::require(v >= INT32_MIN && v <= INT32_MAX, "field ", r.tag(), " holds ", v, ", out of range");
  return static_cast<int32_t>(v);
}

/// A repeated int64, either packed into one field or in one field per value.
void integers(pbf_reader& r, std::vector<int64_t>& out) {
  if (r.wire_type() == pbf_wire_type::varint) {
    out.push_back(r.get_int64());
    return;
  }
  want(r, pbf_wire_type::length_delimited);
  for (int64_t v : r.get_packed_int64()) out.push_back(v);
}

void floats(pbf_reader& r, std::vector<float>& out) {
  if (r.wire_type() == pbf_wire_type::fixed32) {
    out.push_back(r.get_float());
    return;
  }
  want(r, pbf_wire_type::length_delimited);
  for (float v : r.get_packed_float()) out.push_back(v);
}

StringPair read_pair(pbf_reader r) {
  StringPair pair;
  while (r.next()) {
    switch (r.tag()) {
      case 1: pair.key = text(r); break;
      case 2: pair.value = text(r); break;
      default: r.skip();
    }
  }
  return pair;
}

OpsetId read_opset(pbf_reader r) {
  OpsetId id;
  while (r.next()) {
    switch (r.tag()) {
      case 1: id.domain = text(r); break;
      case 2: id.version = integer(r); break;
      default: r.skip();
    }
  }
  return id;
}

TensorProto read_tensor(pbf_reader r, std::string_view bytes, Budget& budget) {
  TensorProto t;
  t.message = bytes;
  while (r.next()) {
    switch (r.tag()) {
      case 1: integers(r, t.dims); break;
      case 2: t.data_type = small_integer(r); break;
      case 8: t.name = text(r); break;
      case 9: t.raw_data = text(r); break;
      case 13: t.external_data.push_back(read_pair(message(r, budget))); break;
      case 14: t.is_external = integer(r) == 1; break;
      default: r.skip();
    }
  }
  return t;
}

TensorProto tensor_field(pbf_reader& r, Budget& budget) {
  budget.spend();
  const std::string_view bytes = text(r);
  return read_tensor(pbf_reader(bytes.data(), bytes.size()), bytes, budget);
}

SparseTensorProto read_sparse(pbf_reader r, Budget& budget) {
  SparseTensorProto s;
  while (r.next()) {
    switch (r.tag()) {
      case 1: s.values = tensor_field(r, budget); break;
      case 2: s.indices = tensor_field(r, budget); break;
      case 3: integers(r, s.dims); break;
      default: r.skip();
    }
  }
  return s;
}

DimProto read_dim(pbf_reader r) {
  DimProto d;
  while (r.next()) {
    switch (r.tag()) {
      case 1: d.value = integer(r); break;
      case 2: d.param = text(r); break;
      default: r.skip();
    }
  }
  return d;
}

void read_tensor_type(pbf_reader r, TypeProto& type, Budget& budget) {
  type.kind = "tensor";
  while (r.next()) {
    switch (r.tag()) {
      case 1: type.elem_type = small_integer(r); break;
      case 2: {
        type.has_shape = true;
        pbf_reader shape = message(r, budget);
        while (shape.next()) {
          if (shape.tag() == 1) {
            type.dims.push_back(read_dim(message(shape, budget)));
          } else {
            shape.skip();
          }
        }
        break;
      }
      default: r.skip();
    }
  }
}

TypeProto read_type(pbf_reader r, Budget& budget) {
  TypeProto type;
  while (r.next()) {
    switch (r.tag()) {
      case 1: read_tensor_type(message(r, budget), type, budget); break;
      case 4: type.kind = "sequence", r.skip(); break;
      case 5: type.kind = "map", r.skip(); break;
      case 7: type.kind = "opaque", r.skip(); break;
      case 8: type.kind = "sparse tensor", r.skip(); break;
      case 9: type.kind = "optional", r.skip(); break;
      default: r.skip();
    }
  }
  return type;
}

ValueInfoProto read_value_info(pbf_reader r, Budget& budget) {
  ValueInfoProto info;
  while (r.next()) {
    switch (r.tag()) {
      case 1: info.name = text(r); break;
      case 2: info.type = read_type(message(r, budget), budget); break;
      default: r.skip();
    }
  }
  return info;
}

GraphProto read_graph(pbf_reader r, Budget& budget);

/// Infers the kind of an attribute written before the `type` field existed from the only field present.
void infer_kind(AttributeProto& a, AttrKind seen) {
  if (a.kind == AttrKind::undefined) a.kind = seen;
}

AttributeProto read_attribute(pbf_reader r, Budget& budget) {
  AttributeProto a;
  AttrKind seen = AttrKind::undefined;
  while (r.next()) {
    switch (r.tag()) {
      case 1: a.name = text(r); break;
      case 2: want(r, pbf_wire_type::fixed32), a.f = r.get_float(), seen = AttrKind::real; break;
      case 3: a.i = integer(r), seen = AttrKind::integer; break;
      case 4: a.s = text(r), seen = AttrKind::text; break;
      case 5: a.t = std::make_shared<TensorProto>(tensor_field(r, budget)), seen = AttrKind::tensor; break;
      case 6:
        a.g = std::make_shared<GraphProto>(read_graph(message(r, budget), budget)), seen = AttrKind::graph;
        break;
      case 7: floats(r, a.floats), seen = AttrKind::reals; break;
      case 8: integers(r, a.ints), seen = AttrKind::integers; break;
      case 9: a.strings.push_back(text(r)), seen = AttrKind::texts; break;
      case 10: r.skip(), seen = AttrKind::tensors; break;
      case 11: r.skip(), seen = AttrKind::graphs; break;
      case 14: r.skip(), seen = AttrKind::type; break;
      case 15: r.skip(), seen = AttrKind::types; break;
      case 20: a.kind = static_cast<AttrKind>(small_integer(r)); break;
      case 21: a.ref_attr_name = text(r); break;
      case 22:
        a.sparse = std::make_shared<SparseTensorProto>(read_sparse(message(r, budget), budget));
        seen = AttrKind::sparse_tensor;
        break;
      case 23: r.skip(), seen = AttrKind::sparse_tensors; break;
      default: r.skip();
    }
  }
  infer_kind(a, seen);
  return a;
}

NodeProto read_node(pbf_reader r, Budget& budget) {
  NodeProto n;
  while (r.next()) {
    switch (r.tag()) {
      case 1: budget.spend(), n.input.push_back(text(r)); break;
      case 2: budget.spend(), n.output.push_back(text(r)); break;
      case 3: n.name = text(r); break;
      case 4: n.op_type = text(r); break;
      case 5: n.attribute.push_back(read_attribute(message(r, budget), budget)); break;
      case 7: n.domain = text(r); break;
      case 8: n.overload = text(r); break;
      default: r.skip();
    }
  }
  return n;
}

GraphProto read_graph(pbf_reader r, Budget& budget) {
  base::require(++budget.depth <= kMaxGraphDepth, "graphs are nested deeper than ", kMaxGraphDepth);
  GraphProto g;
  while (r.next()) {
    switch (r.tag()) {
      case 1: g.node.push_back(read_node(message(r, budget), budget)); break;
      case 2: g.name = text(r); break;
      case 5: g.initializer.push_back(tensor_field(r, budget)); break;
      case 11: g.input.push_back(read_value_info(message(r, budget), budget)); break;
      case 12: g.output.push_back(read_value_info(message(r, budget), budget)); break;
      case 13: g.value_info.push_back(read_value_info(message(r, budget), budget)); break;
      case 15: g.sparse_initializer.push_back(read_sparse(message(r, budget), budget)); break;
      default: r.skip();
    }
  }
  --budget.depth;
  return g;
}

FunctionProto read_function(pbf_reader r, Budget& budget) {
  FunctionProto f;
  while (r.next()) {
    switch (r.tag()) {
      case 1: f.name = text(r); break;
      case 4: budget.spend(), f.input.push_back(text(r)); break;
      case 5: budget.spend(), f.output.push_back(text(r)); break;
      case 6: budget.spend(), f.attribute.push_back(text(r)); break;
      case 7: f.node.push_back(read_node(message(r, budget), budget)); break;
      case 9: f.opset_import.push_back(read_opset(message(r, budget))); break;
      case 10: f.domain = text(r); break;
      case 11: f.attribute_proto.push_back(read_attribute(message(r, budget), budget)); break;
      case 13: f.overload = text(r); break;
      default: r.skip();
    }
  }
  return f;
}

ModelProto read_model(pbf_reader r, Budget& budget) {
  ModelProto m;
  bool has_graph = false;
  while (r.next()) {
    switch (r.tag()) {
      case 1: m.ir_version = integer(r); break;
      case 2: m.producer_name = text(r); break;
      case 3: m.producer_version = text(r); break;
      case 4: m.domain = text(r); break;
      case 5: m.model_version = integer(r); break;
      case 7: m.graph = read_graph(message(r, budget), budget), has_graph = true; break;
      case 8: m.opset_import.push_back(read_opset(message(r, budget))); break;
      case 14: m.metadata.push_back(read_pair(message(r, budget))); break;
      case 25: m.functions.push_back(read_function(message(r, budget), budget)); break;
      default: r.skip();
    }
  }
  base::require(has_graph, "the file has no graph");
  return m;
}

/// Runs a reader and converts protozero's exceptions (truncated field, over-long varint, unknown wire type).
template <class Read>
auto guarded(std::string_view what, const Read& read) {
  try {
    return read();
  } catch (const protozero::exception& e) {
    base::fail_invalid("not a well-formed ", what, ": ", e.what());
  } catch (const base::Error& e) {
    throw e.with(base::concat("not a well-formed ", what));
  }
}

}  // namespace

ModelProto parse_model(std::string_view bytes) {
  return guarded("ONNX model", [&] {
    Budget budget;
    return read_model(pbf_reader(bytes.data(), bytes.size()), budget);
  });
}

TensorProto parse_tensor(std::string_view bytes) {
  return guarded("ONNX tensor", [&] {
    Budget budget;
    return read_tensor(pbf_reader(bytes.data(), bytes.size()), bytes, budget);
  });
}

}  // namespace trireme::model::onnx
