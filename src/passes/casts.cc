// Casts beside kernels that read and write 16 bits vanish into them.
#include "passes/casts.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ops/elementwise/fused.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;

bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

/// Ops whose result types follow from operand 0, with f32 inside on a device; weights may stay f32.
bool follows_rows(std::string_view op) {
  constexpr std::string_view kOps[] = {"softmax",    "softmax_grad", "log_softmax",  "log_softmax_grad",
                                       "layer_norm", "rms_norm",     "dropout_train"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

class Absorber {
 public:
  Absorber(ir::Graph& graph, tensor::DeviceKind device) : graph_(graph), device_(device) {}

  /// Rounds until nothing changes: what one node gives up, the next may take.
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
  /// The 16-bit value that operand `i` is widened from, or kNoValue.
  ValueId half_source(const Node& node, size_t i) const {
    if (node.in[i] == ir::kNoValue) return ir::kNoValue;
    const Node* cast = graph_.producer(node.in[i]);
    if (cast == nullptr || cast->op_name() != "cast" || graph_.type(node.in[i]).dtype != DType::f32)
      return ir::kNoValue;
    return is_half(graph_.type(cast->in[0]).dtype) ? cast->in[0] : ir::kNoValue;
  }

  /// The casts that are all readers of a result, and their type; empty if there is another reader.
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

  /// What a node would become.
  struct Change {
    std::vector<ValueId> in;
    std::vector<std::vector<ir::NodeId>> casts;  // of each result
    std::vector<DType> types;                    // of each result
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
    if (s.is_view || s.is_control || s.updates_state() || s.is_collective || is_touched(node)) return false;
    const Change c = change_of(node);
    if (!c.reads && !c.writes) return false;
    if (follows_rows(node.op_name())) return c.reads && absorb_rows(number, node, c);
    return absorb_elements(number, node, c);
  }

  /// All 16-bit operands become operands; all results that turn 16-bit must be wanted so.
  bool absorb_rows(ir::NodeId number, const Node& node, const Change& c) {
    ir::NodeView view = graph_.view(node);
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (c.in[i] == node.in[i]) continue;
      view.in[i] = graph_.type(c.in[i]);
      view.known[i] = nullptr;
    }
    // Gradients have operands of one type.
    if (node.op_name().ends_with("_grad") && view.in[0].dtype != view.in[1].dtype) return false;
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

  /// The function of an elementwise node over f32 with one result that is read.
  std::optional<ops::FusedFunction> single(const Node& node) const {
    if (node.out.size() != 1 || graph_.type(node.out[0]).dtype != DType::f32) return std::nullopt;
    if (std::count(node.in.begin(), node.in.end(), ir::kNoValue) > 0) return std::nullopt;
    return ops::fused_function(node.op_name(), graph_.view(node));
  }

  void replace(ir::NodeId number, const Node& node, const std::vector<ValueId>& out, const Change& c) {
    for (size_t r = 0; r < node.out.size(); ++r) {
      if (node.out[r] == ir::kNoValue) continue;
      touched_.insert(node.out[r]);
      if (graph_.type(out[r]).dtype == DType::f32) {
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
    graph_.erase(number);
  }

  /// Uses are counted once a round: what they were counted for has changed around these values.
  bool is_touched(const Node& node) const {
    const auto any = [&](const std::vector<ValueId>& ids) {
      return std::any_of(ids.begin(), ids.end(),
                         [&](ValueId id) { return id != ir::kNoValue && touched_.count(id) > 0; });
    };
    return any(node.in) || any(node.out);
  }

  /// Casts that nobody reads any more.
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
