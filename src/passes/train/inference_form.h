// From a graph that was exported in training mode to the same network as it is evaluated and served.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Sets the modes that a file states to inference: a batch_norm takes its running statistics, and a dropout
/// keeps all elements. The training form (to_training) does not depend on these modes. Returns how many nodes
/// changed. Throws unsupported if a mask, or statistics that a batch norm updates, are read.
size_t to_inference(ir::Graph& graph);

}  // namespace trireme::passes
