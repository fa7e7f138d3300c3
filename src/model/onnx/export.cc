// Writes graphs as ONNX files: names, nodes, initializers and subgraphs, field by field.
#include "model/onnx/export.h"

#include <algorithm>
#include <optional>
#include <protozero/pbf_writer.hpp>
#include <set>

#include "base/files/file.h"
#include "model/onnx/import.h"
#include "model/onnx/proto.h"
#include "model/onnx/tensor_proto.h"

namespace trireme::model::onnx {
namespace {

using ir::ValueId;
using protozero::pbf_writer;
using tensor::DType;

constexpr int64_t kLimitBytes =
    (int64_t{1} << 31) - (1 << 20);  // protobuf's limit, minus room for the structure

/// What came into ONNX after the oldest opset that files are written for. A node needs the opset if all that
/// is given here fits it.
struct Introduced {
  std::string_view op;
  int64_t opset;
  std::string_view attr = {};
  std::optional<size_t> operand = {};
  std::optional<DType> dtype = {};  ///< of any operand or result
};
constexpr Introduced kYoung[] = {
    {"Attention", 23},
    {"RMSNormalization", 23},
    {"RotaryEmbedding", 23},
    {"Swish", 24},
    {"TensorScatter", 24},
    {"CumProd", 26},
    {"BitCast", 26},
    {"LinearAttention", 27},
    {"CausalConvWithState", 27},
    {"SwiGLU", 28},
    {.op = "Attention", .opset = 24, .operand = 6},  // lengths of the keys
    {.op = "Attention", .opset = 25, .attr = "left_window_size"},
    {.op = "Attention", .opset = 25, .attr = "right_window_size"},
    {.op = "Cast", .opset = 24, .attr = "round_mode"},
    {.op = "CastLike", .opset = 24, .attr = "round_mode"},
    {.op = "DequantizeLinear", .opset = 23, .attr = "output_dtype"},
    {.op = "QuantizeLinear", .opset = 23, .attr = "precision"},
    {.op = "Range", .opset = 27, .attr = "stash_type"},
    {.op = "Range", .opset = 27, .dtype = DType::f16},
    {.op = "Range", .opset = 27, .dtype = DType::bf16},
    {.op = "Celu", .opset = 28, .dtype = DType::f16},
    {.op = "Celu", .opset = 28, .dtype = DType::bf16},
    {.op = "Celu", .opset = 28, .dtype = DType::f64},
    {.op = "BitShift", .opset = 28, .dtype = DType::i8},
    {.op = "BitShift", .opset = 28, .dtype = DType::i16},
    {.op = "BitShift", .opset = 28, .dtype = DType::i32},
    {.op = "BitShift", .opset = 28, .dtype = DType::i64},
    {.op = "TopK", .opset = 24, .dtype = DType::bf16},
    {.op = "Compress", .opset = 28, .dtype = DType::bf16},
    {.op = "Einsum", .opset = 28, .dtype = DType::bf16},
    {.op = "OneHot", .opset = 28, .dtype = DType::bf16},
    {.op = "ReverseSequence", .opset = 28, .dtype = DType::bf16},
    {.op = "Unique", .opset = 28, .dtype = DType::bf16},
    // Types that came to all operators which only move or convert elements.
    {.op = "", .opset = 23, .dtype = DType::f4e2m1},
    {.op = "", .opset = 24, .dtype = DType::f8e8m0},
    {.op = "", .opset = 25, .dtype = DType::i2},
    {.op = "", .opset = 25, .dtype = DType::u2},
};
// Operators that take bf16 since opset 22, each between blanks.
constexpr std::string_view kBf16Since22 =
    " Acos Acosh Asin Asinh Atan Atanh AveragePool Bernoulli Conv ConvTranspose Cos Cosh DeformConv"
    " Det Dropout Elu EyeLike GRU GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample HardSigmoid"
    " HardSwish InstanceNormalization LSTM LpNormalization LpPool MaxPool MaxRoiPool MaxUnpool Mish"
    " Multinomial NegativeLogLikelihoodLoss RNN RandomNormal RandomNormalLike RandomUniform"
    " RandomUniformLike RoiAlign Round Selu Sin Sinh Softplus Softsign Tan ThresholdedRelu ";

/// Throws unsupported for a form that only old opsets have.
void need_current(const ir::Node& node) {
  constexpr std::string_view kName = "coordinate_transformation_mode", kOld = "tf_half_pixel_for_nn";
  if (node.attrs.get_string(kName, "") == kOld)
    base::fail_unsupported(node.op->schema.onnx, " with ", kName, " '", kOld, "', which ends with opset 12");
}

void expand_all(ir::Graph& g);

/// The same in the bodies of control flow.
void expand_bodies(ir::Graph& g) {
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    ir::Node& node = g.node(ir::NodeId(static_cast<uint32_t>(i)));
    const ir::Attrs attrs = node.attrs;  // a copy, because setting an attribute changes the list
    for (const auto& [name, value] : attrs.items()) {
      const auto* body = std::get_if<ir::GraphPtr>(&value);
      if (body == nullptr) continue;
      const auto expanded = std::make_shared<ir::Graph>(**body);
      expand_all(*expanded);
      node.attrs.set(name, ir::GraphPtr(expanded));
    }
  }
}

/// Rewrites ops that have no ONNX operator, until none is left.
void expand_all(ir::Graph& g) {
  constexpr int kRounds = 8;  // an expansion may use ops that expand again
  for (int round = 0; round < kRounds; ++round) {
    bool is_done = true;
    const size_t count = g.nodes().size();
    for (size_t i = 0; i < count; ++i) {
      const auto id = ir::NodeId(static_cast<uint32_t>(i));
      if (g.node(id).op == nullptr || !g.node(id).op->schema.onnx.empty()) continue;
      const ir::Node node = g.node(id);  // a copy, because expanding appends to the vector that holds it
      if (!node.op->schema.expand) base::fail_unsupported("op '", node.op_name(), "' has no ONNX operator");
      const std::vector<ValueId> results = node.op->schema.expand(g, node);
      for (size_t r = 0; r < node.out.size() && r < results.size(); ++r) {
        if (node.out[r] != ir::kNoValue) g.replace_uses(node.out[r], results[r]);
      }
      g.erase(id);
      is_done = false;
    }
    g.sort();
    if (is_done) return expand_bodies(g);
  }
  base::fail_unsupported("an op expands without end");
}

bool has_type(const ir::Graph& g, const ir::Node& node, DType dtype) {
  const auto fits = [&](ValueId id) { return id != ir::kNoValue && g.type(id).dtype == dtype; };
  return std::any_of(node.in.begin(), node.in.end(), fits) ||
         std::any_of(node.out.begin(), node.out.end(), fits);
}

/// The opset that a node needs, or `opset` if that is newer.
int64_t opset_of(const ir::Graph& g, const ir::Node& node, int64_t opset) {
  const std::string_view op = node.op->schema.onnx;
  for (const Introduced& young : kYoung) {
    if (young.opset > opset && (young.op.empty() || young.op == op) &&
        (young.attr.empty() || node.attrs.has(young.attr)) &&
        (!young.operand || node.has_operand(*young.operand)) &&
        (!young.dtype || has_type(g, node, *young.dtype)))
      opset = young.opset;
  }
  const bool is_listed = kBf16Since22.find(base::concat(" ", op, " ")) != std::string_view::npos;
  return is_listed && has_type(g, node, DType::bf16) ? std::max<int64_t>(opset, 22) : opset;
}

int64_t opset_for(const ir::Graph& g, int64_t opset) {
  for (const ir::Node& node : g.nodes()) {
    opset = opset_of(g, node, opset);
    for (const auto& [name, value] : node.attrs.items()) {
      if (const auto* body = std::get_if<ir::GraphPtr>(&value)) opset = opset_for(**body, opset);
    }
  }
  return opset;
}

void write_tensor(pbf_writer& w, const tensor::Tensor& t, const std::string& name) {
  w.add_packed_int64(1, t.dims().begin(), t.dims().end());
  w.add_int32(2, dtype_to_onnx(t.dtype()));
  w.add_string(8, name);
  w.add_bytes(9, reinterpret_cast<const char*>(t.raw()), static_cast<size_t>(t.bytes()));
}

/// Appends the initializer so that its data starts at a multiple of 64 from the start of the graph message; a
/// reader that maps the file can then use it in place. A doc string of blanks fills the space before it.
void append_aligned_initializer(std::string& graph, const tensor::Tensor& t, const std::string& name) {
  constexpr size_t kAlignment = 64;
  const auto encode = [&](size_t blanks) {
    std::string bytes;
    pbf_writer w(bytes);
    w.add_packed_int64(1, t.dims().begin(), t.dims().end());
    w.add_int32(2, dtype_to_onnx(t.dtype()));
    w.add_string(8, name);
    w.add_string(12, std::string(blanks, ' '));
    return bytes;
  };
  const auto data_bytes = static_cast<size_t>(t.bytes());
  const auto varint_bytes = [](uint64_t v) { return static_cast<size_t>(protozero::length_of_varint(v)); };
  for (size_t blanks = 0; blanks < kAlignment; ++blanks) {
    const std::string head = encode(blanks);
    const size_t message_bytes = head.size() + 1 + varint_bytes(data_bytes) + data_bytes;
    const size_t at = graph.size() + 1 + varint_bytes(message_bytes) + message_bytes - data_bytes;
    if (at % kAlignment != 0 && blanks + 1 < kAlignment) continue;
    pbf_writer w(graph);
    pbf_writer tensor_writer(w, 5, message_bytes);
    graph.append(head);
    tensor_writer.add_bytes(9, reinterpret_cast<const char*>(t.raw()), data_bytes);
    return;
  }
}

/// Empty messages are written too: they stand for the shape of a scalar, or for an unknown dimension.
std::string encode_shape(const tensor::Shape& shape) {
  std::string bytes;
  pbf_writer w(bytes);
  for (const tensor::Dim& d : shape.dims()) {
    std::string dim_bytes;
    pbf_writer dim(dim_bytes);
    if (d.is_static()) {
      dim.add_int64(1, d.value());
    } else if (!d.is_unknown()) {
      dim.add_string(2, d.name());
    }
    w.add_message(1, dim_bytes);
  }
  return bytes;
}

void write_type(pbf_writer& w, const tensor::TensorType& type) {
  pbf_writer tensor_type(w, 1);
  tensor_type.add_int32(1, dtype_to_onnx(type.dtype));
  if (type.shape.has_rank()) tensor_type.add_message(2, encode_shape(type.shape));
}

void write_value_info(pbf_writer& w, const std::string& name, const tensor::TensorType& type) {
  w.add_string(1, name);
  pbf_writer type_writer(w, 2);
  write_type(type_writer, type);
}

/// Names for the values of one graph, unique among themselves and among the surrounding graphs.
class ValueNames {
 public:
  ValueNames(const ir::Graph& g, std::set<std::string>& taken) : names_(g.values().size()), taken_(taken) {
    for (ValueId id : g.inputs()) claim(id, g.value(id).name);
    for (size_t i = 0; i < g.outputs().size(); ++i) claim(g.outputs()[i], g.output_names()[i]);
  }

  /// Uses the name of a value of an outer graph, which is visible inside the body.
  void borrow(ValueId id, const std::string& outer) { names_[index(id)] = outer; }

  const std::string& of(const ir::Graph& g, ValueId id) {
    if (id == ir::kNoValue) return empty_;
    if (names_[index(id)].empty()) claim(id, g.value(id).name);
    return names_[index(id)];
  }

 private:
  void claim(ValueId id, const std::string& wanted) {
    std::string name = wanted.empty() ? base::concat("v", index(id)) : wanted;
    for (int i = 1; !taken_.insert(name).second; ++i)
      name = base::concat(wanted.empty() ? "v" : wanted, ".", index(id), "_", i);
    names_[index(id)] = name;
  }

  std::vector<std::string> names_;
  std::set<std::string>& taken_;
  const std::string empty_;
};

class Exporter {
 public:
  /// `borrowed`: outer names of a body's last inputs, which are captured instead of declared.
  /// `top`: the buffer of the outermost graph, in which the weights are aligned.
  void write_graph(pbf_writer& w, const ir::Graph& g, const std::vector<std::string>& borrowed,
                   std::string* top = nullptr) {
    ValueNames names(g, taken_);
    const size_t own_inputs = g.inputs().size() - borrowed.size();
    for (size_t i = 0; i < borrowed.size(); ++i) names.borrow(g.inputs()[own_inputs + i], borrowed[i]);
    for (size_t i = 0; i < g.values().size(); ++i) {
      if (!is_constant_node(g.values()[i])) continue;
      pbf_writer node_writer(w, 1);
      write_constant_node(node_writer, g.values()[i].data, names.of(g, ValueId(static_cast<uint32_t>(i))));
    }
    for (const ir::Node& node : g.nodes()) {
      pbf_writer node_writer(w, 1);
      write_node(node_writer, g, node, names);
    }
    w.add_string(2, g.name.empty() ? "graph" : g.name);
    for (size_t i = 0; i < g.values().size(); ++i) {
      const ir::Value& value = g.values()[i];
      if (value.kind == ir::ValueKind::state)
        base::fail_unsupported("ONNX has no state, value '", value.name, "'");
      if (!value.data.defined() || is_constant_node(value)) continue;
      written_bytes_ += value.data.bytes();
      if (written_bytes_ > kLimitBytes)
        base::fail_unsupported("the weights exceed the 2 GiB of one ONNX file");
      const std::string& name = names.of(g, ValueId(static_cast<uint32_t>(i)));
      if (top != nullptr) {
        append_aligned_initializer(*top, value.data, name);
      } else {
        pbf_writer tensor_writer(w, 5);
        write_tensor(tensor_writer, value.data, name);
      }
    }
    for (size_t i = 0; i < own_inputs; ++i) {
      pbf_writer info(w, 11);
      write_value_info(info, names.of(g, g.inputs()[i]), g.type(g.inputs()[i]));
    }
    for (ValueId id : g.outputs()) {
      pbf_writer info(w, 12);
      write_value_info(info, names.of(g, id), g.type(id));
    }
  }

 private:
  /// Training programs take float initializers for weights, so float constants (tables of angles, for
  /// example) are written as Constant nodes.
  static bool is_constant_node(const ir::Value& v) {
    return v.kind == ir::ValueKind::constant && tensor::is_float(v.type.dtype) && v.data.rank() > 0;
  }

  void write_constant_node(pbf_writer& w, const tensor::Tensor& t, const std::string& name) {
    written_bytes_ += t.bytes();
    if (written_bytes_ > kLimitBytes) base::fail_unsupported("the weights exceed the 2 GiB of one ONNX file");
    w.add_string(2, name);
    w.add_string(3, base::concat("constant_", ++node_count_));
    w.add_string(4, "Constant");
    pbf_writer attr(w, 5);
    attr.add_string(1, "value");
    write_attr(attr, t, {});
  }

  void write_node(pbf_writer& w, const ir::Graph& g, const ir::Node& node, ValueNames& names) {
    need_current(node);
    const bool is_control = node.op->schema.is_control;
    const auto captures = static_cast<size_t>(is_control ? node.attrs.get_int("captures", 0) : 0);
    base::check(captures <= node.in.size(), "more captures than operands");
    const size_t own = node.in.size() - captures;
    std::vector<std::string> borrowed;
    for (size_t i = own; i < node.in.size(); ++i) borrowed.push_back(names.of(g, node.in[i]));
    for (size_t i = 0; i < own; ++i) w.add_string(1, names.of(g, node.in[i]));
    for (ValueId id : node.out) w.add_string(2, names.of(g, id));
    w.add_string(3, base::concat(node.op_name(), "_", ++node_count_));
    w.add_string(4, node.op->schema.onnx);
    for (const auto& [name, value] : node.attrs.items()) {
      // Not in ONNX: the number of captures of a body, and the embedding row that is not trained.
      if ((is_control && name == "captures") || name == "padding_idx") continue;
      pbf_writer attr(w, 5);
      attr.add_string(1, name);
      write_attr(attr, value, borrowed);
    }
  }

  void write_attr(pbf_writer& w, const ir::AttrValue& value, const std::vector<std::string>& borrowed) {
    const auto kind = [&](AttrKind k) { w.add_int32(20, static_cast<int32_t>(k)); };
    if (const auto* i = std::get_if<int64_t>(&value)) {
      w.add_int64(3, *i), kind(AttrKind::integer);
    } else if (const auto* f = std::get_if<double>(&value)) {
      w.add_float(2, static_cast<float>(*f)), kind(AttrKind::real);
    } else if (const auto* s = std::get_if<std::string>(&value)) {
      w.add_string(4, *s), kind(AttrKind::text);
    } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      w.add_packed_int64(8, list->begin(), list->end()), kind(AttrKind::integers);
    } else if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
      w.add_packed_float(7, reals->begin(), reals->end()), kind(AttrKind::reals);
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      for (const std::string& text : *texts) w.add_string(9, text);
      kind(AttrKind::texts);
    } else if (const auto* t = std::get_if<tensor::Tensor>(&value)) {
      pbf_writer tensor_writer(w, 5);
      write_tensor(tensor_writer, *t, "");
      tensor_writer.commit();
      kind(AttrKind::tensor);
    } else {
      pbf_writer body(w, 6);
      write_graph(body, *std::get<ir::GraphPtr>(value), borrowed);
      body.commit();
      kind(AttrKind::graph);
    }
  }

  std::set<std::string> taken_;
  int64_t node_count_ = 0;
  int64_t written_bytes_ = 0;
};

/// The IR version that was released with an opset.
int64_t ir_version_of(int64_t opset) { return opset <= 22 ? 10 : opset <= 24 ? 11 : opset == 25 ? 12 : 13; }

}  // namespace

std::string export_onnx(const ir::Graph& graph, const ExportOptions& options) {
  base::require(options.opset >= kOldestExportOpset && options.opset <= kNewestOpset,
                "files are written for opset ", kOldestExportOpset, " to ", kNewestOpset, ", not ",
                options.opset);
  ir::Graph g = graph;
  expand_all(g);
  const int64_t opset = opset_for(g, options.opset);
  std::string graph_bytes;
  pbf_writer graph_writer(graph_bytes);
  Exporter().write_graph(graph_writer, g, {}, &graph_bytes);

  std::string bytes;
  pbf_writer model(bytes);
  model.add_int64(1, ir_version_of(opset));
  model.add_string(2, options.producer);
  {
    pbf_writer opset_writer(model, 8);
    opset_writer.add_string(1, "");
    opset_writer.add_int64(2, opset);
  }
  // A doc string of blanks also aligns the graph message to a multiple of 64.
  const size_t before =
      bytes.size() + 2 + 1 + static_cast<size_t>(protozero::length_of_varint(graph_bytes.size()));
  model.add_string(6, std::string((64 - before % 64) % 64, ' '));
  model.add_message(7, graph_bytes);
  return bytes;
}

void save_onnx(const ir::Graph& graph, const std::string& path, const ExportOptions& options) {
  base::write_file_atomic(path, export_onnx(graph, options));
}

}  // namespace trireme::model::onnx
