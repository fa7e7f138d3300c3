// Depthwise convolutions and the pointwise ones around them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Makes one node of a depthwise convolution, the pointwise one that reads it, and the pointwise one before
/// it where nothing else reads what lies between.
size_t gather_separable(ir::Graph& graph);

}  // namespace trireme::passes
