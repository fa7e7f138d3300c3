// Fuses groups of elementwise nodes into single nodes, which pass over memory once.
#include "passes/fuse/elementwise.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/elementwise/fused.h"
#include "ops/table.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

constexpr size_t kMaxFusedSteps = 48;  // enough for any activation; bounds the search for a group

/// The function that a fused step computes for `node`; nullopt unless it is elementwise over f32 with a
/// fixed, non-empty shape.
std::optional<ops::FusedFunction> function_of(const Rewriter& rw, const Node& node) {
  if (node.out.size() != 1 || node.out[0] == ir::kNoValue || rw.uses(node.out[0]) == 0) return std::nullopt;
  const auto dims = rw.dims(node.out[0]);
  if (!dims || tensor::element_count(*dims) == 0) return std::nullopt;
  if (rw.graph().type(node.out[0]).dtype != tensor::DType::f32) return std::nullopt;
  for (ValueId id : node.in) {
    if (id != ir::kNoValue && !rw.dims(id)) return std::nullopt;
  }
  return ops::fused_function(node.op_name(), rw.graph().view(node));
}

/// The nodes of a group by id, which is also a valid order of execution.
using Group = std::set<uint32_t>;

size_t reads_inside(const Rewriter& rw, const Group& group, ValueId id) {
  size_t count = 0;
  for (uint32_t n : group) {
    const Node& node = rw.graph().node(ir::NodeId(n));
    count += static_cast<size_t>(std::count(node.in.begin(), node.in.end(), id));
  }
  return count;
}

/// Grows a group upward from `last`. An operand joins if it has the shape of the result and all its readers
/// are in the group. So only the last value leaves the group, and no node outside can depend on one member
/// while another depends on it.
Group group_above(const Rewriter& rw, uint32_t last) {
  Group group{last};
  const auto dims = rw.dims(rw.graph().node(ir::NodeId(last)).out[0]);
  for (bool grown = true; grown && group.size() < kMaxFusedSteps;) {
    grown = false;
    for (uint32_t n : Group(group)) {
      const Node node = rw.graph().node(ir::NodeId(n));
      const size_t operands = function_of(rw, node)->operands;
      for (size_t i = 0; i < operands && group.size() < kMaxFusedSteps; ++i) {
        const Node* above = rw.graph().producer(node.in[i]);
        if (above == nullptr || rw.dims(node.in[i]) != dims || !function_of(rw, *above)) continue;
        if (reads_inside(rw, group, node.in[i]) != rw.uses(node.in[i])) continue;
        const auto id = static_cast<uint32_t>(ir::index(rw.graph().value(node.in[i]).producer));
        grown = group.insert(id).second || grown;
      }
    }
  }
  return group;
}

/// Writes the steps of a group and numbers its operands, constants and registers.
class StepWriter {
 public:
  StepWriter(const Rewriter& rw, const Group& group) : rw_(rw), group_(group) {}

  /// False if the group needs more operands or registers than a fused node has.
  bool write() {
    count_reads();
    for (uint32_t n : group_) {
      if (!write_step(rw_.graph().node(ir::NodeId(n)), n == *group_.rbegin())) return false;
    }
    return in_.size() <= static_cast<size_t>(ops::kMaxFusedInputs) && !in_.empty();
  }

  std::vector<ValueId> operands() const { return in_; }
  ir::Attrs attrs() const { return {{"steps", steps_}, {"params", params_}, {"constants", constants_}}; }

 private:
  void count_reads() {
    for (uint32_t n : group_) {
      const Node& node = rw_.graph().node(ir::NodeId(n));
      for (size_t i = 0; i < function_of(rw_, node)->operands; ++i) ++reads_[node.in[i]];
    }
  }

  bool write_step(const Node& node, bool is_last) {
    const ops::FusedFunction function = *function_of(rw_, node);
    ops::FusedStepText step{function.name, "o0", {}};
    for (size_t i = 0; i < function.operands; ++i) step.operands.push_back(reference(node.in[i]));
    if (!is_last) {
      // Allocated before the operands' registers are freed: a step never overwrites its operands.
      const auto free = std::find(taken_.begin(), taken_.end(), false);
      if (free == taken_.end()) return false;
      *free = true;
      registers_[node.out[0]] = static_cast<size_t>(free - taken_.begin());
      step.dst = base::concat("r", registers_[node.out[0]]);
    }
    for (size_t i = 0; i < function.operands; ++i) release(node.in[i]);
    steps_.push_back(ops::to_string(step));
    params_.insert(params_.end(), function.params.begin(), function.params.end());
    return true;
  }

  std::string reference(ValueId id) {
    if (const auto at = registers_.find(id); at != registers_.end()) return base::concat("r", at->second);
    if (const auto value = rw_.scalar(id)) {
      const auto at = std::find(constants_.begin(), constants_.end(), *value);
      const size_t place = static_cast<size_t>(at - constants_.begin());
      if (at == constants_.end()) constants_.push_back(*value);
      return base::concat("c", place);
    }
    const auto at = std::find(in_.begin(), in_.end(), id);
    const size_t place = static_cast<size_t>(at - in_.begin());
    if (at == in_.end()) in_.push_back(id);
    return base::concat("i", place);
  }

  void release(ValueId id) {
    const auto at = registers_.find(id);
    if (--reads_[id] == 0 && at != registers_.end()) taken_[at->second] = false;
  }

  const Rewriter& rw_;
  const Group& group_;
  std::map<ValueId, size_t> reads_, registers_;
  std::vector<bool> taken_ = std::vector<bool>(ops::kMaxFusedRegisters, false);
  std::vector<ValueId> in_;
  std::vector<std::string> steps_;
  std::vector<double> params_, constants_;
};

bool fuse_above(Rewriter& rw, uint32_t last) {
  const Node node = rw.graph().node(ir::NodeId(last));
  if (!function_of(rw, node)) return false;
  const Group group = group_above(rw, last);
  if (group.size() < 2) return false;
  StepWriter writer(rw, group);
  if (!writer.write()) return false;
  const ValueId fused = rw.add("fused_elementwise", writer.operands(), writer.attrs(), node.from);
  const Node& made = *rw.graph().producer(fused);
  // Groups that no kernel runs (broadcasts with three different extents) stay single nodes.
  if (ops::choose_kernel(*made.op, rw.graph().view(made), tensor::DeviceKind::cpu) == nullptr) return false;
  return rw.replace_same(node.out[0], fused);
}

}  // namespace

size_t fuse_elementwise(ir::Graph& graph) {
  Rewriter rw(graph);
  size_t changes = 0;
  // Nodes are visited from the outputs upward, so a group starts at its last node; members of a fused node
  // have no uses left.
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    if (graph.nodes()[n].op != nullptr) changes += fuse_above(rw, static_cast<uint32_t>(n));
  }
  return changes;
}

}  // namespace trireme::passes
