// When collectives begin: as soon as their operands are ready, except all_gathers, which would only fill
// memory and begin shortly before their use.
#include "ops/collective/issue.h"

#include <algorithm>

#include "ir/updates.h"

namespace trireme::ops {
namespace {

using ir::Graph;
using ir::Node;

constexpr size_t kNever = SIZE_MAX;

/// Positions of the readers of values.
struct Readers {
  std::vector<size_t> first;                ///< first reader of each node's results
  std::vector<std::vector<size_t>> states;  ///< all readers of each state, in order; indexed by value

  explicit Readers(const Graph& graph) : first(graph.nodes().size(), kNever), states(graph.values().size()) {
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      for (const ir::ValueId id : graph.nodes()[n].in) {
        if (id == ir::kNoValue) continue;
        const ir::NodeId producer = graph.value(id).producer;
        if (producer != ir::kNoNode) first[index(producer)] = std::min(first[index(producer)], n);
        const ir::ValueId source = graph.viewed(id);
        if (graph.value(source).kind == ir::ValueKind::state) states[index(source)].push_back(n);
      }
    }
  }
};

/// The earliest position at which node n may begin, considering only nodes that are not collectives: after
/// the producers of its operands and the readers of the old content of states that it updates.
size_t ready(const Graph& graph, size_t n, const Readers& readers) {
  const Node& node = graph.nodes()[n];
  size_t at = 0;
  for (const ir::ValueId id : node.in) {
    const Node* producer = graph.producer(id);
    if (producer != nullptr && !producer->op->schema.is_collective)
      at = std::max(at, index(graph.value(id).producer) + 1);
  }
  for (const ir::StateUpdate& u : ir::updates_of(node)) {
    for (const size_t reader : readers.states[index(node.in[u.operand])]) {
      if (reader < n) at = std::max(at, reader + 1);
    }
  }
  return at;
}

}  // namespace

std::vector<Issue> issue_order(const Graph& sorted, bool keep_order, int prefetch) {
  const Readers readers(sorted);
  std::vector<Issue> issues;
  std::vector<size_t> gather_reads;  // first readers of the gathers so far
  std::vector<size_t> begins(sorted.nodes().size(), 0);
  for (size_t n = 0; n < sorted.nodes().size(); ++n) {
    const Node& node = sorted.nodes()[n];
    if (!node.op->schema.is_collective) continue;
    size_t before = ready(sorted, n, readers);
    for (const ir::ValueId id : node.in) {
      // Not before the collective that computes an operand.
      const Node* producer = sorted.producer(id);
      if (producer != nullptr && producer->op->schema.is_collective)
        before = std::max(before, begins[index(sorted.value(id).producer)]);
    }
    if (node.op_name() == "all_gather") {
      const size_t ahead = static_cast<size_t>(prefetch);
      if (gather_reads.size() >= ahead && ahead > 0) {
        const size_t read = gather_reads[gather_reads.size() - ahead];
        before = std::max(before, read == kNever ? 0 : std::min(read, n));
      } else if (ahead == 0) {
        before = n;
      }
      gather_reads.push_back(readers.first[n]);
    }
    if (keep_order && !issues.empty()) before = std::max(before, issues.back().before);
    begins[n] = std::min(before, n);
    issues.push_back({n, begins[n]});
  }
  std::stable_sort(issues.begin(), issues.end(),
                   [](const Issue& a, const Issue& b) { return a.before < b.before; });
  return issues;
}

}  // namespace trireme::ops
