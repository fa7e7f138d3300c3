// Keeps weight gradients in f32, the type in which they are summed, if only casts to f32 read them.
#include "passes/precision/wide_gradients.h"

#include <algorithm>

#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;

class GradientWidener {
 public:
  explicit GradientWidener(ir::Graph& graph)
      : graph_(graph), uses_(graph.uses()), outputs_(graph.outputs().begin(), graph.outputs().end()) {}

  size_t run() {
    const size_t count = graph_.nodes().size();
    size_t changes = 0;
    for (size_t n = 0; n < count; ++n) {
      const Node node = graph_.nodes()[n];
      if (node.op == nullptr || node.op_name() != "linear_grad_w" || !is_half(node.in[0])) continue;
      changes += widen(ir::NodeId(static_cast<uint32_t>(n)), node);
    }
    if (changes > 0) graph_.sort();
    return changes;
  }

 private:
  bool is_half(ValueId id) const {
    const DType type = graph_.type(id).dtype;
    return type == DType::bf16 || type == DType::f16;
  }

  /// True if a result is read only by casts to f32.
  bool is_read_wide(ValueId id) const {
    if (id == ir::kNoValue) return true;
    if (!is_half(id) || std::find(outputs_.begin(), outputs_.end(), id) != outputs_.end()) return false;
    const std::vector<ir::NodeId>& readers = uses_[index(id)];
    return std::all_of(readers.begin(), readers.end(), [&](ir::NodeId reader) {
      const Node& cast = graph_.node(reader);
      return cast.op_name() == "cast" && graph_.type(cast.out[0]).dtype == DType::f32;
    });
  }

  bool widen(ir::NodeId number, const Node& node) {
    if (!std::all_of(node.out.begin(), node.out.end(), [&](ValueId id) { return is_read_wide(id); }))
      return false;
    // In place: a new node would run right before its reader, the update, and keep its operands alive.
    graph_.node(number).attrs.set("wide", int64_t{1});
    for (const ValueId id : node.out) {
      if (id == ir::kNoValue) continue;
      graph_.value(id).type.dtype = DType::f32;
      for (const ir::NodeId cast : uses_[index(id)]) {
        graph_.replace_uses(graph_.node(cast).out[0], id);
        graph_.erase(cast);
      }
    }
    return true;
  }

  ir::Graph& graph_;
  const std::vector<std::vector<ir::NodeId>> uses_;
  const std::vector<ValueId> outputs_;
};

}  // namespace

size_t widen_weight_gradients(ir::Graph& graph) {
  graph.sort();
  return GradientWidener(graph).run();
}

}  // namespace trireme::passes
