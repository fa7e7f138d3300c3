// Fusion of depthwise convolutions with the pointwise convolutions around them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Fuses a depthwise convolution with the pointwise one that reads it and, if no other node reads the value
/// between them, with the pointwise one before it.
size_t gather_separable(ir::Graph& graph);

}  // namespace trireme::passes
