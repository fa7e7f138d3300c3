// Removes casts next to kernels that can read and write 16-bit elements themselves.
#include "passes/precision/casts.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ops/elementwise/fused.h"
#include "ops/table.h"
#include "passes/precision/narrow_types.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;

class Absorber {
 public:
  Absorber(ir::Graph& graph, tensor::DeviceKind device) : graph_(graph), device_(device) {}

  /// Repeats until nothing changes, since one change can enable the next.
  size_t run() {
    size_t total = 0;
    for (size_t changes = 1; changes > 0; total += changes) {
      changes = 0;
      uses_ = graph_.uses();
      outputs_ = {graph_.outputs().begin(), graph_.outputs().end()};
      touched_.clear();
      const size_t count = graph_.nodes().size();
      for (size_t n = 0; n < count; ++n) {
        const Node node = graph_.nodes()[n];
        if (node.op != nullptr && absorb(ir::NodeId(static_cast<uint32_t>(n)), node)) ++changes;
      }
      drop_unread();
      graph_.sort();
    }
    return total;
  }

 private:
  /// The 16-bit value from which operand `i` is cast to f32, or kNoValue.
  ValueId half_source(const Node& node, size_t i) const {
    if (node.in[i] == ir::kNoValue) return ir::kNoValue;
    const Node* cast = graph_.producer(node.in[i]);
    if (cast == nullptr || cast->op_name() != "cast" || graph_.type(node.in[i]).dtype != DType::f32)
      return ir::kNoValue;
    return is_half(graph_.type(cast->in[0]).dtype) ? cast->in[0] : ir::kNoValue;
  }

  /// The casts of a result and their type, if casts to one type are its only readers; else empty.
  std::vector<ir::NodeId> narrowing(ValueId result, DType& type) const {
    if (result == ir::kNoValue || graph_.type(result).dtype != DType::f32 || outputs_.count(result) > 0 ||
        index(result) >= uses_.size())
      return {};
    const std::vector<ir::NodeId>& readers = uses_[index(result)];
    for (size_t r = 0; r < readers.size(); ++r) {
      const Node& reader = graph_.node(readers[r]);
      if (reader.op == nullptr || reader.op_name() != "cast") return {};
      const DType to = graph_.type(reader.out[0]).dtype;
      if (!is_half(to) || (r > 0 && to != type)) return {};
      type = to;
    }
    return readers;
  }

  /// The changes that a node would undergo.
  struct Change {
    std::vector<ValueId> in;
    std::vector<std::vector<ir::NodeId>> casts;  // by result
    std::vector<DType> types;                    // by result
    bool reads = false, writes = false;
  };
  Change change_of(const Node& node) const {
    Change c{.in = node.in, .casts = {}, .types = {}};
    for (size_t i = 0; i < node.in.size(); ++i) {
      const ValueId half = half_source(node, i);
      if (half == ir::kNoValue) continue;
      c.in[i] = half;
      c.reads = true;
    }
    for (ValueId out : node.out) {
      DType type = DType::f32;
      c.casts.push_back(narrowing(out, type));
      c.types.push_back(c.casts.back().empty() ? DType::f32 : type);
      c.writes = c.writes || !c.casts.back().empty();
    }
    return c;
  }

  bool absorb(ir::NodeId number, const Node& node) {
    const ir::OpSchema& s = node.op->schema;
    if (s.is_control || s.updates_state() || s.is_collective || is_touched(node)) return false;
    const Change c = change_of(node);
    if (s.is_view || only_moves(node)) return absorb_view(number, node, c);
    if (s.half_rows.operands == 0) return (c.reads || c.writes) && absorb_elements(number, node, c);
    if (c.reads && absorb_rows(number, node, c)) return true;
    return s.half_rows.rounded >= 0 && absorb_rounding(number, node, c);
  }

  /// True for ops that move all elements of their first operand independently of data: rounding may come
  /// before them, and then handles at most as many elements.
  bool only_moves(const Node& node) const {
    const ir::OpSchema& s = node.op->schema;
    if (s.moves != 1 || ir::is_elementwise(s) || node.out.size() != 1 || node.out[0] == ir::kNoValue)
      return false;
    for (size_t i = 1; i < node.in.size(); ++i) {
      if (node.in[i] != ir::kNoValue && graph_.known(node.in[i]) == nullptr) return false;
    }
    const auto elements = [&](ValueId id) { return graph_.type(id).shape.elements().value_or(0); };
    return node.in[0] != ir::kNoValue && elements(node.in[0]) <= elements(node.out[0]);
  }

  /// Moves casts past views, to f32 after them and to 16 bits before them, towards nodes that can absorb
  /// them. Ops that move elements are passed only by casts to 16 bits.
  bool absorb_view(ir::NodeId number, const Node& node, const Change& c) {
    const ValueId x = node.in[0];
    if (node.out.size() != 1 || node.out[0] == ir::kNoValue) return false;
    const auto view_of = [&](ValueId half) {
      std::vector<ValueId> in = node.in;
      in[0] = half;
      return graph_.add1(*node.op, in, node.attrs, node.from);
    };
    ValueId half = ir::kNoValue, made = ir::kNoValue;
    const bool is_view = node.op->schema.is_view;
    if (is_view && c.in[0] != x && uses_[index(x)].size() == 1 && outputs_.count(x) == 0) {
      half = c.in[0];
      const Node cast = *graph_.producer(x);
      made = graph_.add1(*cast.op, {view_of(half)}, cast.attrs, node.from);
      graph_.replace_uses(node.out[0], made);
    } else if (c.writes && (!is_view || graph_.producer(x) != nullptr) &&
               graph_.type(x).dtype == DType::f32) {
      const Node cast = graph_.node(c.casts[0][0]);
      half = graph_.add1(*cast.op, {x}, cast.attrs, node.from);
      made = view_of(half);
      for (ir::NodeId id : c.casts[0]) {
        touched_.insert(graph_.node(id).out[0]);
        graph_.replace_uses(graph_.node(id).out[0], made);
        graph_.erase(id);
      }
    } else {
      return false;
    }
    touched_.insert({x, half, made, node.out[0]});
    graph_.erase(number);
    return true;
  }

  /// Every 16-bit operand is read directly; results may become 16-bit only if all their readers want that.
  bool absorb_rows(ir::NodeId number, const Node& node, const Change& c) {
    ir::NodeView view = graph_.view(node);
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (c.in[i] == node.in[i]) continue;
      view.in[i] = graph_.type(c.in[i]);
      view.known[i] = nullptr;
    }
    for (size_t i = 0; i < view.in.size(); ++i) {
      const bool is_alike = view.present(i) && (node.op->schema.half_rows.operands >> i & 1u) != 0;
      if (is_alike && view.in[i].dtype != view.in[0].dtype) return false;
    }
    if (!is_half(view.in[0].dtype)) return false;
    const std::vector<tensor::TensorType> types = ir::infer_types(node.op->schema, view);
    for (size_t r = 0; r < node.out.size(); ++r) {
      const bool is_read = node.out[r] != ir::kNoValue &&
                           (outputs_.count(node.out[r]) > 0 || !uses_[index(node.out[r])].empty());
      if (is_read && types[r].dtype != c.types[r]) return false;
    }
    view.out = types;
    if (ops::choose_kernel(*node.op, view, device_) == nullptr) return false;
    replace(number, node, graph_.add(*node.op, c.in, node.attrs, node.out.size(), node.from), c);
    return true;
  }

  /// The casts to one 16-bit type among the readers of a result; `is_read`: whether it has other readers.
  std::vector<ir::NodeId> casts_of(ValueId result, DType& type, bool& is_read) const {
    std::vector<ir::NodeId> casts;
    if (result == ir::kNoValue) return casts;
    is_read = outputs_.count(result) > 0;
    if (graph_.type(result).dtype != DType::f32 || index(result) >= uses_.size()) return casts;
    for (const ir::NodeId id : uses_[index(result)]) {
      const Node& reader = graph_.node(id);
      const bool is_cast = reader.op != nullptr && reader.op_name() == "cast";
      const DType to = is_cast ? graph_.type(reader.out[0]).dtype : DType::f32;
      if (!is_half(to) || (!casts.empty() && to != type)) {
        is_read = true;
        continue;
      }
      type = to;
      casts.push_back(id);
    }
    return casts;
  }

  /// A norm over f32 rows reads a 16-bit gradient directly. Casts of its first result become its rounded
  /// result, and the first one is left out if nothing else reads it.
  bool absorb_rounding(ir::NodeId number, const Node& node, const Change& c) {
    const ir::HalfRows& rows = node.op->schema.half_rows;
    const auto at = static_cast<size_t>(rows.rounded);
    Change only{.in = node.in, .casts = {}, .types = {}};
    for (size_t i = 0; i < only.in.size(); ++i) {
      if ((rows.alone >> i & 1u) != 0) only.in[i] = c.in[i];
    }
    DType type = DType::f32;
    bool is_read = true;
    std::vector<ir::NodeId> casts;
    if (node.out.size() <= at) casts = casts_of(node.out[0], type, is_read);
    if (only.in == node.in && casts.empty()) return false;
    ir::Attrs attrs = node.attrs;
    if (!casts.empty()) attrs.set("rounded", std::string(tensor::name_of(type)));
    const size_t count = casts.empty() ? node.out.size() : at + 1;
    const std::vector<ValueId> out = graph_.add(*node.op, only.in, attrs, count, node.from);
    const ir::NodeId made = graph_.value(out[0]).producer;
    if (ops::choose_kernel(*node.op, graph_.view(graph_.node(made)), device_) == nullptr) {
      graph_.erase(made);
      return false;
    }
    for (size_t r = 0; r < count; ++r) {
      const bool is_left_out = r < node.out.size() ? node.out[r] == ir::kNoValue : r != at;
      if (is_left_out || (r == 0 && !is_read)) graph_.node(made).out[r] = ir::kNoValue;
    }
    only.casts.assign(node.out.size(), {});
    replace(number, node, out, only);
    for (const ir::NodeId cast : casts) {
      const ValueId narrow = graph_.node(cast).out[0];
      touched_.insert(narrow);
      graph_.replace_uses(narrow, out[at]);
      graph_.erase(cast);
    }
    return true;
  }

  bool absorb_elements(ir::NodeId number, const Node& node, const Change& c) {
    ir::Attrs attrs = node.attrs;
    std::vector<ValueId> in = c.in;
    if (node.op_name() != "fused_elementwise") {
      const std::optional<ops::FusedFunction> function = single(node);
      if (!function) return false;
      in.resize(function->operands);
      ops::FusedStepText step{function->name, "o0", {}};
      for (size_t i = 0; i < in.size(); ++i) step.operands.push_back(base::concat("i", i));
      attrs = {{"steps", std::vector<std::string>{ops::to_string(step)}},
               {"params", std::vector<double>(function->params.begin(), function->params.end())}};
    }
    std::vector<std::string> results;
    for (DType t : c.types) results.emplace_back(tensor::name_of(t));
    attrs.set("results", results);
    const ir::OpDef& fused = ops::table().need("fused_elementwise");
    const std::vector<ValueId> out = graph_.add(fused, in, attrs, node.out.size(), node.from);
    const Node made = *graph_.producer(out[0]);
    const ir::NodeId made_number = graph_.value(out[0]).producer;
    if (ops::choose_kernel(fused, graph_.view(made), device_) == nullptr) {
      graph_.erase(made_number);
      return false;
    }
    replace(number, node, out, c);
    return true;
  }

  /// The function of an f32 elementwise node with only one result that is read.
  std::optional<ops::FusedFunction> single(const Node& node) const {
    if (node.out.size() != 1 || graph_.type(node.out[0]).dtype != DType::f32) return std::nullopt;
    if (std::count(node.in.begin(), node.in.end(), ir::kNoValue) > 0) return std::nullopt;
    return ops::fused_function(node.op_name(), graph_.view(node));
  }

  /// Puts a new node at the position of the old one: recomputation looks for positions that a single value
  /// crosses, and nodes sorted in at later positions would make other values cross there.
  void settle(ir::NodeId made, ir::NodeId place) {
    const Node moved = graph_.node(made);
    graph_.erase(made);
    graph_.node(place) = moved;
    for (size_t i = 0; i < moved.in.size(); ++i) {
      if (moved.in[i] != ir::kNoValue) graph_.set_operand(place, i, moved.in[i]);
    }
    for (ValueId id : moved.out) {
      if (id != ir::kNoValue) graph_.value(id).producer = place;
    }
  }

  void replace(ir::NodeId number, const Node& node, const std::vector<ValueId>& out, const Change& c) {
    for (size_t r = 0; r < node.out.size(); ++r) {
      if (node.out[r] == ir::kNoValue) continue;
      touched_.insert(node.out[r]);
      if (graph_.type(out[r]).dtype == graph_.type(node.out[r]).dtype) {
        graph_.replace_uses(node.out[r], out[r]);
        continue;
      }
      for (ir::NodeId cast : c.casts[r]) {
        const ValueId narrow = graph_.node(cast).out[0];
        touched_.insert(narrow);
        graph_.replace_uses(narrow, out[r]);
        graph_.erase(cast);
      }
    }
    touched_.insert(node.in.begin(), node.in.end());
    touched_.insert(c.in.begin(), c.in.end());
    touched_.insert(out.begin(), out.end());
    settle(graph_.value(out[0]).producer, number);
  }

  /// True if an operand or result changed in this round; uses are counted only once per round.
  bool is_touched(const Node& node) const {
    const auto any = [&](const std::vector<ValueId>& ids) {
      return std::any_of(ids.begin(), ids.end(),
                         [&](ValueId id) { return id != ir::kNoValue && touched_.count(id) > 0; });
    };
    return any(node.in) || any(node.out);
  }

  /// Removes casts without readers.
  void drop_unread() {
    graph_.sort();
    const auto uses = graph_.uses();
    outputs_ = {graph_.outputs().begin(), graph_.outputs().end()};
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (node.op == nullptr || node.op_name() != "cast") continue;
      const ValueId out = node.out[0];
      if (uses[index(out)].empty() && outputs_.count(out) == 0)
        graph_.erase(ir::NodeId(static_cast<uint32_t>(n)));
    }
  }

  ir::Graph& graph_;
  tensor::DeviceKind device_;
  std::vector<std::vector<ir::NodeId>> uses_;
  std::set<ValueId> outputs_, touched_;
};

}  // namespace

size_t absorb_casts(ir::Graph& graph, tensor::DeviceKind device) {
  if (device != tensor::DeviceKind::cuda) return 0;
  graph.sort();
  return Absorber(graph, device).run();
}

}  // namespace trireme::passes
