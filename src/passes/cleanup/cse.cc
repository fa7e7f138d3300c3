// Common subexpression elimination: nodes with equal op, attributes and operands are computed once.
#include <unordered_map>

#include "passes/cleanup/cleanup.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

std::string key_of(const ir::Node& node) {
  std::string key(node.op_name());
  for (ir::ValueId id : node.in) key += " " + std::to_string(ir::index(id));
  key += " -> " + std::to_string(node.out.size());
  return key + " " + node.attrs.to_string();
}

bool same_results(const ir::Node& a, const ir::Node& b) {
  // Every result that b has must exist in a.
  for (size_t i = 0; i < b.out.size(); ++i) {
    if (b.out[i] != ir::kNoValue && a.out[i] == ir::kNoValue) return false;
  }
  return a.attrs.same_as(b.attrs);
}

/// Small equal constants are merged first so that the nodes that read them become equal.
size_t merge_constants(ir::Graph& graph) {
  constexpr int64_t kMaxBytes = 4096;
  std::unordered_map<std::string, ir::ValueId> first;
  size_t changes = 0;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const auto id = ir::ValueId(static_cast<uint32_t>(i));
    const ir::Value& v = graph.value(id);
    if (v.kind != ir::ValueKind::constant || v.data.bytes() > kMaxBytes || tensor::is_absent(v.data))
      continue;
    const std::string key = base::concat(v.type.to_string(), tensor::content_hash(v.data));
    const auto [at, is_new] = first.emplace(key, id);
    if (is_new || !graph.value(at->second).data.same_as(v.data)) continue;
    graph.replace_uses(id, at->second);
    ++changes;
  }
  return changes;
}

}  // namespace

size_t merge_equal_nodes(ir::Graph& graph) {
  size_t changes = merge_constants(graph);
  std::unordered_map<std::string, ir::NodeId> first;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    const ir::Node& node = graph.node(id);
    if (node.op == nullptr) continue;
    const ir::OpSchema& op = node.op->schema;
    if (op.is_random || op.is_control || op.is_collective || op.updates_state()) continue;
    const auto [at, is_new] = first.emplace(key_of(node), id);
    if (is_new || !same_results(graph.node(at->second), node)) continue;
    const std::vector<ir::ValueId> old = node.out, kept = graph.node(at->second).out;
    graph.erase(id);
    for (size_t i = 0; i < old.size(); ++i) {
      if (old[i] != ir::kNoValue) graph.replace_uses(old[i], kept[i]);
    }
    ++changes;
  }
  return changes;
}

}  // namespace trireme::passes
