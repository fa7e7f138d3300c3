// Passes that make graphs smaller without changing what they compute: no-ops, equal nodes.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Removes identities, casts to the same type, dropout in inference, and transposes and reshapes that change
/// nothing or undo the one before.
size_t remove_noops(ir::Graph& graph);

/// Merges nodes of equal op, attributes and operands.
size_t merge_equal_nodes(ir::Graph& graph);

}  // namespace trireme::passes
