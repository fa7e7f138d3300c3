// Mixed precision by classes of ops, and the fallback to f32 on devices without 16-bit kernels.
#include "passes/precision/precision.h"

#include <algorithm>
#include <map>

#include "ops/elementwise/cast.h"
#include "ops/table.h"
#include "passes/precision/float8.h"
#include "passes/precision/narrow_types.h"
#include "passes/name_match.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

using Kind = ir::PrecisionRule::Kind;

/// The precision rule of a node: from the options, or that of its op.
ir::PrecisionRule rule_of(const Node& node, const PrecisionOptions& options) {
  for (const std::string& pattern : options.keep) {
    if (name_matches(pattern, node.from) || pattern == node.op_name())
      return {.kind = Kind::kept, .why = "asked for"};
  }
  return ir::precision_of(node.op->schema);
}

DType dtype_of(Precision p) { return p == Precision::f16 ? DType::f16 : DType::bf16; }

/// ONNX's number of a type that casts convert to.
int64_t onnx_number(DType t) {
  switch (t) {
    case DType::f32: return 1;
    case DType::f16: return 10;
    case DType::bf16: return 16;
    default: base::fail(base::ErrorCode::internal, "no precision ", name_of(t));
  }
}

ValueId add_cast(ir::Graph& graph, ValueId value, DType to, const std::string& from) {
  return graph.add1(ops::table().need("cast"), {value}, {{"to", onnx_number(to)}}, from);
}

bool is_product(const Node& node) {
  const Kind kind = ir::precision_of(node.op->schema).kind;
  return kind == Kind::product || kind == Kind::paged;
}

/// For each node of a sorted graph: whether a product depends on its results.
std::vector<bool> followed_by_products(const ir::Graph& graph) {
  std::vector<bool> value(graph.values().size()), node(graph.nodes().size());
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& it = graph.nodes()[n];
    if (it.op == nullptr) continue;
    for (ValueId id : it.out) node[n] = node[n] || (id != ir::kNoValue && value[ir::index(id)]);
    if (!node[n] && !is_product(it)) continue;
    for (ValueId id : it.in) {
      if (id != ir::kNoValue) value[ir::index(id)] = true;
    }
  }
  return node;
}

/// Rebuilds the nodes whose operands have changed type.
class PrecisionLowering {
 public:
  PrecisionLowering(ir::Graph& graph, const PrecisionOptions& options)
      : graph_(graph), options_(options), low_type_(dtype_of(options.compute)) {}

  PrecisionReport run() {
    if (options_.compute == Precision::fp8) {
      graph_.sort();
      followed_ = followed_by_products(graph_);
    }
    const size_t count = graph_.nodes().size();
    for (size_t n = 0; n < count; ++n) {
      const Node node = graph_.nodes()[n];  // a copy, as the graph grows
      if (node.op != nullptr) visit(ir::NodeId(static_cast<uint32_t>(n)), node);
    }
    std::vector<ValueId> outputs = graph_.outputs();
    for (ValueId& id : outputs) id = as_before(id);
    graph_.set_outputs(outputs, std::vector<std::string>(graph_.output_names()));
    graph_.sort();
    return std::move(report_);
  }

 private:
  DType type(ValueId id) const { return graph_.type(id).dtype; }

  /// The value that replaces a value of the old graph.
  ValueId now(ValueId id) const {
    const auto at = now_.find(id);
    return at == now_.end() ? id : at->second;
  }

  /// The cast of a value to a type, made once for all readers.
  ValueId cast(ValueId id, DType to, const std::string& from) {
    ValueId& made = casts_.try_emplace({id, to}, ir::kNoValue).first->second;
    if (made != ir::kNoValue) return made;
    // A cast back may be skipped only if the first cast was exact: from 16 bits to f32.
    const Node* producer = graph_.producer(id);
    if (producer != nullptr && producer->op_name() == "cast" && is_half(to) && type(producer->in[0]) == to)
      return made = producer->in[0];
    const ir::ValueKind kind = graph_.value(id).kind;
    made = add_cast(graph_, id, to, from);
    ++report_.casts;
    report_.weight_casts += kind == ir::ValueKind::state || kind == ir::ValueKind::param;
    return made;
  }
  ValueId wide(ValueId id, const std::string& from) {
    return is_half(type(id)) ? cast(id, DType::f32, from) : id;
  }
  ValueId low(ValueId id, const std::string& from) {
    return type(id) == DType::f32 ? cast(id, low_type_, from) : id;
  }
  /// What replaces a value of the old graph, in the type that the value had there.
  ValueId as_before(ValueId id) {
    const ValueId made = now(id);
    return type(made) == type(id) ? made : cast(made, type(id), "");
  }

  /// A constant of one element in the low type, if it represents the value exactly.
  std::optional<ValueId> exact_scalar(ValueId id) {
    const Tensor* value = graph_.known(id);
    if (value == nullptr || value->elements() != 1 || tensor::is_absent(*value) ||
        graph_.value(id).kind != ir::ValueKind::constant)
      return std::nullopt;
    const double x = value->to_doubles()[0];
    const float as_float = static_cast<float>(x);
    const double rounded = low_type_ == DType::f16 ? double(float(tensor::Half(as_float)))
                                                   : double(float(tensor::BFloat16(as_float)));
    if (rounded != x) return std::nullopt;
    return low(id, "");
  }

  /// Operands of a node that follows them: all low if some are and none must stay wide, else all wide.
  bool follow(const Node& node, std::vector<ValueId>& in) {
    bool any_low = false, all_low = true;
    std::vector<ValueId> narrow = in;
    for (ValueId& id : narrow) {
      if (id == ir::kNoValue || !tensor::is_float(type(id))) continue;
      if (is_half(type(id))) {
        any_low = true;
      } else if (const auto exact = any_operand_low(in) ? exact_scalar(id) : std::nullopt) {
        id = *exact;
      } else {
        all_low = false;
      }
    }
    if (any_low && all_low) {
      in = narrow;
      return true;
    }
    for (ValueId& id : in) id = id == ir::kNoValue ? id : wide(id, node.from);
    return false;
  }

  /// The first operand keeps its type, the others (weights and statistics) are f32.
  bool follow_first(const Node& node, std::vector<ValueId>& in) {
    const bool is_low = is_half(type(in[0]));
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] == ir::kNoValue) continue;
      const bool is_element = (node.op->schema.half_rows.operands >> i & 1u) != 0;
      in[i] = is_low && is_element ? low(in[i], node.from) : wide(in[i], node.from);
    }
    return is_low;
  }

  bool any_operand_low(const std::vector<ValueId>& in) const {
    return std::any_of(in.begin(), in.end(),
                       [&](ValueId id) { return id != ir::kNoValue && is_half(type(id)); });
  }

  /// Widens 16-bit operands of another type than the low one where both types would meet: in a model that is
  /// 16-bit already. `lowered`: f32 operands before this place become low, those behind it do not count.
  void part_halves(const Node& node, std::vector<ValueId>& in, size_t lowered) {
    const auto is_other = [&](ValueId id) {
      return id != ir::kNoValue && is_half(type(id)) && type(id) != low_type_;
    };
    bool is_met = false;
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] == ir::kNoValue) continue;
      is_met = is_met || type(in[i]) == low_type_ || (i < lowered && type(in[i]) == DType::f32);
    }
    if (!is_met || node.op->schema.updates_state()) return;
    for (ValueId& id : in) id = is_other(id) ? cast(id, DType::f32, node.from) : id;
  }

  /// Decides about a node after its operands have been decided.
  void visit(ir::NodeId number, const Node& node) {
    std::vector<ValueId> in;
    bool has_float = false;
    for (ValueId id : node.in) {
      in.push_back(id == ir::kNoValue ? id : now(id));
      has_float |= id != ir::kNoValue && type(in.back()) != DType::f64 && tensor::is_float(type(in.back()));
    }
    if (!has_float || ops::is_cast(node.op->schema)) {
      rebuild(number, node, std::move(in));
      return;
    }
    const ir::PrecisionRule rule = rule_of(node, options_);
    bool is_low = true, is_float8 = false;
    std::string why(rule.why);
    if (rule.kind == Kind::product || rule.kind == Kind::follows)
      part_halves(node, in, rule.kind == Kind::product ? rule.operands : 0);
    switch (rule.kind) {
      case Kind::product: {
        for (size_t i = 0; i < in.size(); ++i) {
          if (in[i] != ir::kNoValue)
            in[i] = i < rule.operands ? low(in[i], node.from) : wide(in[i], node.from);
        }
        if (options_.compute == Precision::fp8 && node.op_name() == "linear") {
          const ir::Refusal no = refuse_float8(number, node);
          is_float8 = !no.has_value();
          why = no ? base::concat(rule.why, "; ", *no) : "product of 8-bit floats, sums in f32";
        }
        break;
      }
      case Kind::paged:
        // Pages keep their type, since a cast would convert all of them.
        is_low = type(in[rule.operands]) == low_type_;
        for (size_t i = 0; i < rule.operands; ++i)
          in[i] = is_low ? low(in[i], node.from) : wide(in[i], node.from);
        break;
      case Kind::follows:
        is_low = rule.operands == 1 ? follow_first(node, in) : follow(node, in);
        if (!is_low) why = "an operand is f32";
        break;
      case Kind::kept:
        is_low = false;
        for (ValueId& id : in) id = id == ir::kNoValue ? id : wide(id, node.from);
        break;
    }
    report_.rows.push_back({std::string(node.op_name()), node.from, is_low, std::move(why)});
    Node next = node;
    if (is_float8) next.attrs.set("float8", int64_t{1});
    rebuild(number, next, std::move(in), is_float8);
  }

  /// The reason why a linear product keeps 16-bit operands.
  ir::Refusal refuse_float8(ir::NodeId number, const Node& node) const {
    if (!options_.fp8_last && !followed_[ir::index(number)]) return "no product follows";
    const tensor::Dims w = graph_.type(node.in[1]).shape.to_dims();
    return passes::refuse_float8(w[0], w[1]);
  }

  /// The node with new operands and new result types; replaces the old node if the operands differ.
  void rebuild(ir::NodeId number, const Node& node, std::vector<ValueId> in, bool is_changed = false) {
    if (in == node.in && !is_changed) return;
    const std::vector<ValueId> out =
        graph_.add(*node.op, std::move(in), node.attrs, node.out.size(), node.from);
    for (size_t i = 0; i < out.size(); ++i)
      if (node.out[i] != ir::kNoValue) now_[node.out[i]] = out[i];
    graph_.erase(number);
  }

  ir::Graph& graph_;
  const PrecisionOptions& options_;
  DType low_type_;
  std::vector<bool> followed_;                          // by number: a product depends on it; for fp8
  std::map<ValueId, ValueId> now_;                      // values that replace results of rebuilt nodes
  std::map<std::pair<ValueId, DType>, ValueId> casts_;  // casts by value and type
  PrecisionReport report_;
};

/// The node with f32 in place of its 16-bit operands and results.
ir::NodeView widened(ir::NodeView view) {
  for (size_t i = 0; i < view.known.size(); ++i)
    if (is_half(view.in[i].dtype)) view.known[i] = nullptr;
  for (auto* types : {&view.in, &view.out}) {
    for (tensor::TensorType& t : *types) t.dtype = is_half(t.dtype) ? DType::f32 : t.dtype;
  }
  return view;
}

bool has_half(const ir::NodeView& view) {
  const auto any = [](const std::vector<tensor::TensorType>& types) {
    return std::any_of(types.begin(), types.end(), [](const auto& t) { return is_half(t.dtype); });
  };
  return any(view.in) || any(view.out);
}

/// True if f32 between two casts is better than the device's own kernel for 16 bits.
bool needs_widening(const ir::Graph& graph, const Node& node, tensor::DeviceKind device) {
  if (node.op->schema.is_view || node.op->schema.is_control || node.op->schema.updates_state()) return false;
  if (ops::is_cast(node.op->schema)) return false;
  const ir::NodeView view = graph.view(node);
  if (!has_half(view)) return false;
  const ir::Kernel* half = ops::choose_kernel(*node.op, view, device);
  if (half == nullptr) return true;
  const ir::Kernel* full = ops::choose_kernel(*node.op, widened(view), device);
  if (full == nullptr) return false;
  // A kernel that converts internally does so in every reader, with memory of its own.
  return half->is_via_f32 || (half->is_reference && !full->is_reference);
}

/// Casts each value to f32 once, however many nodes read it.
class NodeWidener {
 public:
  explicit NodeWidener(ir::Graph& graph) : graph_(graph) {}

  /// Computes the node in f32 and casts its results back to their types.
  void widen(ir::NodeId number) {
    const Node node = graph_.node(number);
    std::vector<ValueId> in = node.in;
    for (ValueId& id : in) {
      if (id != ir::kNoValue && is_half(graph_.type(id).dtype)) id = wide(id, node.from);
    }
    const std::vector<ValueId> out = graph_.add(*node.op, in, node.attrs, node.out.size(), node.from);
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.out[i] == ir::kNoValue) continue;
      const DType was = graph_.type(node.out[i]).dtype;
      const bool same = graph_.type(out[i]).dtype == was;
      graph_.replace_uses(node.out[i], same ? out[i] : add_cast(graph_, out[i], was, node.from));
    }
    graph_.erase(number);
  }

 private:
  ValueId wide(ValueId id, const std::string& from) {
    ValueId& made = casts_.try_emplace(id, ir::kNoValue).first->second;
    if (made == ir::kNoValue) made = add_cast(graph_, id, DType::f32, from);
    return made;
  }
  ir::Graph& graph_;
  std::map<ValueId, ValueId> casts_;
};

/// Gives distant readers of a widened value separate casts.
class Localiser {
 public:
  explicit Localiser(ir::Graph& graph) : graph_(graph) {}

  size_t run() {
    const std::vector<std::vector<ir::NodeId>> uses = graph_.uses();
    const size_t count = graph_.nodes().size();
    size_t changes = 0;
    for (size_t n = 0; n < count; ++n) {
      const Node node = graph_.nodes()[n];
      if (node.op == nullptr || node.op_name() != "cast" || !is_half(graph_.type(node.in[0]).dtype)) continue;
      if (graph_.type(node.out[0]).dtype == DType::f32) changes += split(n, node, uses[index(node.out[0])]);
    }
    if (changes > 0) graph_.sort();
    return changes;
  }

 private:
  // Readers at most this many nodes apart share a cast: adjacent forward ops, not forward and backward.
  static constexpr size_t kNear = 12;

  /// Walks through the readers in order; after a gap a new group starts with its own cast.
  size_t split(size_t position, const Node& cast, std::vector<ir::NodeId> readers) {
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
    size_t changes = 0, last = position;
    ValueId now = cast.out[0];
    if (const ValueId exact = exact_source(cast); exact != ir::kNoValue) {
      now = exact;
      last = index(graph_.value(exact).producer);
    }
    for (const ir::NodeId reader : readers) {
      // A new node at the end of the list is later sorted to right before its reader.
      if (index(reader) - last > kNear) now = add_cast(graph_, cast.in[0], DType::f32, cast.from);
      last = index(reader);
      for (size_t i = 0; i < graph_.node(reader).in.size(); ++i) {
        if (graph_.node(reader).in[i] != cast.out[0] || now == cast.out[0]) continue;
        graph_.set_operand(reader, i, now);
        ++changes;
      }
    }
    return changes;
  }

  /// The f32 value that the 16-bit operand was rounded from without loss, or kNoValue.
  ValueId exact_source(const Node& widening) const {
    const Node* narrowing = graph_.producer(widening.in[0]);
    if (narrowing == nullptr || narrowing->op_name() != "cast") return ir::kNoValue;
    const ValueId from = narrowing->in[0];
    const bool is_exact =
        graph_.type(from).dtype == DType::f32 && holds_halves(from, graph_.type(widening.in[0]).dtype, 4);
    return is_exact ? from : ir::kNoValue;
  }

  /// True if all f32 elements are exact in type `half`: they were widened, then only moved or selected.
  bool holds_halves(ValueId id, DType half, int depth) const {
    const Node* p = graph_.producer(id);
    if (p == nullptr || depth == 0) return false;
    if (p->op_name() == "cast") return graph_.type(p->in[0]).dtype == half;
    for (size_t i = 0; i < p->in.size(); ++i) {
      const bool is_moved = ir::moves_operand(p->op->schema, i);
      if (is_moved && p->in[i] != ir::kNoValue && !holds_halves(p->in[i], half, depth - 1)) return false;
    }
    return p->op->schema.moves != 0;
  }

  ir::Graph& graph_;
};

}  // namespace

std::string PrecisionReport::text() const {
  std::vector<std::pair<std::string, size_t>> lines;
  for (const PrecisionRow& row : rows) {
    const std::string line = row.op + (row.is_low ? ": 16-bit: " : ": f32: ") + row.why;
    const auto at = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == line; });
    if (at == lines.end()) {
      lines.emplace_back(line, 1);
    } else {
      ++at->second;
    }
  }
  std::string all;
  for (const auto& [line, times] : lines) {
    const size_t colon = line.find(':');
    all += base::concat(line.substr(0, colon), " x ", times, line.substr(colon), "\n");
  }
  return all + base::concat("casts: ", casts, ", of them of weights: ", weight_casts, "\n");
}

PrecisionReport lower_precision(ir::Graph& graph, const PrecisionOptions& options) {
  if (options.compute == Precision::f32) return {};
  return PrecisionLowering(graph, options).run();
}

size_t widen_unsupported(ir::Graph& graph, tensor::DeviceKind device) {
  size_t changes = 0;
  NodeWidener widener(graph);
  const size_t count = graph.nodes().size();
  for (size_t n = 0; n < count; ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    if (graph.node(id).op == nullptr || !needs_widening(graph, graph.node(id), device)) continue;
    widener.widen(id);
    ++changes;
  }
  if (changes > 0) graph.sort();
  return changes;
}

size_t localise_casts(ir::Graph& graph) { return Localiser(graph).run(); }

}  // namespace trireme::passes
