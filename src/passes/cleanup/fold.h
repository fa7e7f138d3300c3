// Constant folding: nodes whose operands are all known are computed now.
#pragma once

#include "base/threads/thread_pool.h"
#include "ir/graph.h"

namespace trireme::passes {

/// Replaces node `id` by constants if its operands are known, it is deterministic and its results take at
/// most `max_bytes`. `shape` and `size` of a static operand fold too.
bool fold_node(ir::Graph& graph, ir::NodeId id, int64_t max_bytes, base::ThreadPool& pool);

/// Folds every node that can be; the pass "fold".
size_t fold_constants(ir::Graph& graph);

}  // namespace trireme::passes
