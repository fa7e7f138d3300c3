// Strings in ONNX models: numbers or handles replace them, so that the engine never sees a string.
#include "model/onnx/importer_strings.h"

#include <algorithm>

#include "model/onnx/importer.h"

namespace trireme::model::onnx {

using ir::ValueId;

namespace {

/// Operators that move elements without reading them, and the range of operands that they move.
struct Mover {
  std::string_view op;
  size_t first, last;
};
constexpr size_t kAll = SIZE_MAX;
constexpr Mover kMovers[] = {
    {"Identity", 0, 0},       {"Reshape", 0, 0},      {"Squeeze", 0, 0},         {"Unsqueeze", 0, 0},
    {"Flatten", 0, 0},        {"Transpose", 0, 0},    {"Expand", 0, 0},          {"Tile", 0, 0},
    {"Slice", 0, 0},          {"Split", 0, 0},        {"Gather", 0, 0},          {"GatherND", 0, 0},
    {"GatherElements", 0, 0}, {"Compress", 0, 0},     {"Concat", 0, kAll},       {"Where", 1, 2},
    {"DepthToSpace", 0, 0},   {"SpaceToDepth", 0, 0}, {"ReverseSequence", 0, 0},
};

std::optional<int64_t> cast_target(const NodeProto& node) {
  if (node.op_type != "Cast" || !(node.domain.empty() || node.domain == "ai.onnx")) return std::nullopt;
  for (const AttributeProto& a : node.attribute) {
    if (a.name == "to") return a.i;
  }
  return std::nullopt;
}

/// The one type to which all readers of the value cast it; nothing if some reader does not cast it.
std::optional<int64_t> parsed_type(const GraphProto& graph, std::string_view name) {
  std::optional<int64_t> type;
  const auto reads = [name](std::string_view in) { return in == name; };
  for (const NodeProto& node : graph.node) {
    for (const AttributeProto& a : node.attribute) {
      if (a.g == nullptr) continue;
      const std::vector<std::string_view> captured = free_names(*a.g);
      if (std::any_of(captured.begin(), captured.end(), reads)) return std::nullopt;
    }
    if (std::none_of(node.input.begin(), node.input.end(), reads)) continue;
    const std::optional<int64_t> to = cast_target(node);
    if (!to || *to == kOnnxString || (type && *type != *to)) return std::nullopt;
    type = to;
  }
  for (const ValueInfoProto& info : graph.output) {
    if (info.name == name) return std::nullopt;
  }
  return type;
}

}  // namespace

bool StringValues::has(ValueId id, const ir::Graph& graph) const {
  return &graph == main_ && id != ir::kNoValue && forms_.contains(ir::index(id));
}

bool StringValues::is_input(const ValueInfoProto& info) const {
  return takes_strings_ && info.type.kind == "tensor" && info.type.elem_type == kOnnxString;
}

ValueInfoProto StringValues::add_input(const ValueInfoProto& info) {
  const std::optional<int64_t> parsed = parsed_type(proto_, info.name);
  StringPort port{.name = std::string(info.name),
                  .form = parsed ? StringPort::Form::number : StringPort::Form::handle};
  inputs_.push_back(std::move(port));
  ValueInfoProto numbers = info;
  numbers.type.elem_type = parsed ? static_cast<int32_t>(*parsed) : dtype_to_onnx(tensor::DType::i64);
  return numbers;
}

std::optional<ValueId> StringValues::add_cast(const NodeProto& node, const PendingNode& pending,
                                              ir::Graph& graph) {
  if (!takes_strings_ || &graph != main_) return std::nullopt;
  const std::optional<int64_t> to = cast_target(node);
  if (!to) return std::nullopt;
  base::require(node.input.size() == 1 && node.output.size() == 1, "a Cast has one input and one output");
  const ValueId in = pending.input(0);
  base::require(in != ir::kNoValue, "a Cast needs its input");
  const auto from = forms_.find(ir::index(in));
  if (from == forms_.end() && *to != kOnnxString) return std::nullopt;
  if (from != forms_.end() && *to == kOnnxString) {
    base::fail_unsupported("a Cast from string to string; use Identity");
  }
  if (from != forms_.end()) {
    const bool is_border =
        from->second == StringPort::Form::number && graph.value(in).kind == ir::ValueKind::input;
    if (!is_border) {
      base::fail_unsupported("a Cast of strings that the model also moves about, or casts to several types");
    }
    return Emitter(graph, pending.from).emit("Identity", {in});
  }
  const ValueId text = Emitter(graph, pending.from).emit("Identity", {in});
  forms_[ir::index(text)] = StringPort::Form::number;
  return text;
}

bool StringValues::moves(const PendingNode& pending, const ir::Graph& graph) const {
  if (forms_.empty()) return false;
  size_t strings = 0, moved = 0;
  const auto* mover = std::find_if(std::begin(kMovers), std::end(kMovers),
                                   [&](const Mover& m) { return m.op == pending.op_type; });
  for (size_t i = 0; i < pending.in.size(); ++i) {
    const bool is_moved = mover != std::end(kMovers) && i >= mover->first && i <= mover->last;
    moved += is_moved;
    if (!has(pending.in[i], graph)) continue;
    ++strings;
    const bool is_handle = forms_.at(ir::index(pending.in[i])) == StringPort::Form::handle;
    if (is_moved && is_handle) continue;
    // Shape and Size do not read the elements either, and return numbers.
    if (pending.op_type == "Shape" || pending.op_type == "Size") return false;
    base::fail_unsupported("operator ", pending.op_type, " on strings",
                           is_moved ? " that a Cast made: only the model's output may be those" : "");
  }
  base::require(strings == 0 || strings == moved, "operator ", pending.op_type, " mixes strings and numbers");
  return strings > 0;
}

void StringValues::note_output(const ValueInfoProto& info, ValueId id) {
  const bool says_string = info.type.kind.empty() || info.type.elem_type == kOnnxString;
  base::require(says_string, "output '", info.name.substr(0, 120),
                "' holds strings, its type says otherwise");
  outputs_.push_back({.name = std::string(info.name), .form = forms_.at(ir::index(id))});
}

}  // namespace trireme::model::onnx
