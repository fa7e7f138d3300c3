// Gives subgraphs the constants that are found outside of them.
#include "passes/cleanup/captures.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ir/attrs.h"

namespace trireme::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

constexpr size_t kNoResult = ~size_t{0};

/// An input of a subgraph whose value is that of an operand of the node in every run.
struct SameInput {
  size_t input = 0, operand = 0;
  size_t result = kNoResult;  ///< of a state that no round changes
};

std::vector<SameInput> captured_inputs(const Node& node, const Graph& sub) {
  const auto count = static_cast<size_t>(node.attrs.get_int("captures", 0));
  std::vector<SameInput> same;
  for (size_t i = 0; i < std::min({count, sub.inputs().size(), node.in.size()}); ++i)
    same.push_back({sub.inputs().size() - 1 - i, node.in.size() - 1 - i});
  return same;
}

/// A body yields its states in the order of its inputs; those of `loop` come after (iteration, condition),
/// and the results after the condition.
void add_unchanged_states(const Node& node, const Graph& body, std::vector<SameInput>& same) {
  const bool is_loop = node.op_name() == "loop";
  const size_t first = is_loop ? 2 : 0, first_result = is_loop ? 1 : 0;
  const auto others =
      static_cast<size_t>(node.attrs.get_int("captures", 0) + node.attrs.get_int("num_scan_inputs", 0));
  for (size_t i = first; i + others < node.in.size(); ++i) {
    const size_t at = i - first + first_result;
    if (i >= body.inputs().size() || at >= body.outputs().size()) return;
    ValueId result = body.outputs()[at];
    const Node* from = body.producer(result);
    while (from != nullptr && from->op_name() == "identity")
      result = from->in[0], from = body.producer(result);
    if (result == body.inputs()[i]) same.push_back({i, i, at});
  }
}

bool is_read(const Graph& graph, ValueId id) {
  const auto reads = [id](const std::vector<ValueId>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& n) { return n.op != nullptr && reads(n.in); });
}

/// The subgraph with constants in place of inputs, which stay, unread; null if nothing changes.
ir::GraphPtr with_constants(const Graph& outer, const Node& node, const ir::GraphPtr& sub) {
  std::vector<SameInput> same = captured_inputs(node, *sub);
  if (node.op_name() != "if") add_unchanged_states(node, *sub, same);
  std::shared_ptr<Graph> changed;
  for (const SameInput& s : same) {
    const tensor::Tensor* known = outer.known(node.in[s.operand]);
    const ValueId id = sub->inputs()[s.input];
    if (known == nullptr || known->dtype() != sub->type(id).dtype || !is_read(*sub, id)) continue;
    if (changed == nullptr) changed = std::make_shared<Graph>(*sub);
    const ValueId constant = changed->add_constant(*known);
    std::vector<ValueId> outputs = changed->outputs();
    if (s.result != kNoResult) outputs[s.result] = id;  // the round returns what it was given, not a copy
    changed->replace_uses(id, constant);
    changed->set_outputs(outputs, changed->output_names());
  }
  if (changed == nullptr) return nullptr;
  changed->sort();
  changed->infer_all();
  return changed;
}

}  // namespace

size_t bind_captures(Graph& graph) {
  size_t changes = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op == nullptr || !node.op->schema.is_control) continue;
    const std::vector<std::pair<std::string, ir::AttrValue>> attrs = node.attrs.items();
    for (const auto& [name, value] : attrs) {
      const auto* sub = std::get_if<ir::GraphPtr>(&value);
      if (sub == nullptr) continue;
      const ir::GraphPtr changed = with_constants(graph, node, *sub);
      if (changed == nullptr) continue;
      node.attrs.set(name, changed);
      ++changes;
    }
  }
  if (changes > 0) graph.infer_all();
  return changes;
}

}  // namespace trireme::passes
