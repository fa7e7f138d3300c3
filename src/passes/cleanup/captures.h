// Constants that subgraphs read from outside.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Makes branches and bodies read constants of their own where what they capture, or what a loop carries from
/// round to round without changing it, is a constant outside: the importer sees only those that a file
/// stores.
size_t bind_captures(ir::Graph& graph);

}  // namespace trireme::passes
