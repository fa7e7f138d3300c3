// Rewrites products over chosen experts as products over all experts.
#include "passes/cleanup/open_experts.h"

#include "passes/rewriter.h"

namespace trireme::passes {

size_t open_expert_products(ir::Graph& graph) {
  Rewriter rw(graph);
  const size_t changes = rw.for_each("expert_linear", [&](ir::NodeId, const ir::Node& node) {
    rw.replace(node.out[0], node.op->schema.expand(graph, node)[0]);
    return true;
  });
  graph.sort();
  return changes;
}

}  // namespace trireme::passes
