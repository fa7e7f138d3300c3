// Strings of an ONNX model: numbers or handles take their place, so that the engine never meets one.
#include <algorithm>
#include <optional>

#include "model/onnx/importer.h"

namespace trireme::model::onnx {

using ir::ValueId;

namespace {

/// Operators that move elements without looking at them, and which of their operands are moved.
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

/// The one type that all readers of the value cast it to; nothing if some of them do not cast it.
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

bool Importer::is_string(ValueId id, const Scope& scope) const {
  return &scope.graph == main_ && id != ir::kNoValue && strings_.contains(ir::index(id));
}

/// Notes how the input is used and gives the input of numbers that stands in its place.
ValueInfoProto Importer::add_string_input(const ValueInfoProto& info) {
  const std::optional<int64_t> parsed = parsed_type(proto_.graph, info.name);
  StringPort port{.name = std::string(info.name), .form = parsed ? StringForm::number : StringForm::handle};
  string_inputs_.push_back(std::move(port));
  ValueInfoProto numbers = info;
  numbers.type.elem_type = parsed ? static_cast<int32_t>(*parsed) : dtype_to_onnx(tensor::DType::i64);
  return numbers;
}

/// A Cast from or to strings vanishes: the caller does it. False for any other node.
bool Importer::add_string_cast(const NodeProto& node, const PendingNode& pending, Scope& scope) {
  if (!takes_strings_ || &scope.graph != main_) return false;
  const std::optional<int64_t> to = cast_target(node);
  if (!to) return false;
  base::require(node.input.size() == 1 && node.output.size() == 1, "a Cast has one input and one output");
  const ValueId in = pending.input(0);
  base::require(in != ir::kNoValue, "a Cast needs its input");
  const auto from = strings_.find(ir::index(in));
  if (from == strings_.end() && *to != kOnnxString) return false;
  if (from != strings_.end() && *to == kOnnxString) {
    base::fail_unsupported("a Cast from string to string; use Identity");
  }
  if (from != strings_.end()) {
    const bool is_border =
        from->second == StringForm::number && scope.graph.value(in).kind == ir::ValueKind::input;
    if (!is_border) {
      base::fail_unsupported("a Cast of strings that the model also moves about, or casts to several types");
    }
    bind(scope, node.output[0], Emitter(scope.graph, pending.from).emit("Identity", {in}));
    return true;
  }
  const ValueId text = Emitter(scope.graph, pending.from).emit("Identity", {in});
  strings_[ir::index(text)] = StringForm::number;
  bind(scope, node.output[0], text);
  return true;
}

bool Importer::moves_strings(const PendingNode& pending, const Scope& scope) const {
  if (strings_.empty()) return false;
  size_t strings = 0, moved = 0;
  const auto* mover = std::find_if(std::begin(kMovers), std::end(kMovers),
                                   [&](const Mover& m) { return m.op == pending.op_type; });
  for (size_t i = 0; i < pending.in.size(); ++i) {
    const bool is_moved = mover != std::end(kMovers) && i >= mover->first && i <= mover->last;
    moved += is_moved;
    if (!is_string(pending.in[i], scope)) continue;
    ++strings;
    const bool is_handle = strings_.at(ir::index(pending.in[i])) == StringForm::handle;
    if (is_moved && is_handle) continue;
    // Shape and Size do not look at the elements either, and give numbers.
    if (pending.op_type == "Shape" || pending.op_type == "Size") return false;
    base::fail_unsupported("operator ", pending.op_type, " on strings",
                           is_moved ? " that a Cast made: only the model's output may be those" : "");
  }
  base::require(strings == 0 || strings == moved, "operator ", pending.op_type, " mixes strings and numbers");
  return strings > 0;
}

void Importer::note_string_output(const ValueInfoProto& info, const Scope& scope) {
  const ValueId id = lookup(scope, info.name);
  const bool says_string = info.type.kind.empty() || info.type.elem_type == kOnnxString;
  base::require(says_string, "output '", info.name.substr(0, 120),
                "' holds strings, its type says otherwise");
  string_outputs_.push_back({.name = std::string(info.name), .form = strings_.at(ir::index(id))});
}

}  // namespace trireme::model::onnx
