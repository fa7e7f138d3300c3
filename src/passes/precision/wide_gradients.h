// Gradients of weights in f32 as they were summed, where only f32 is read of them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Products of 16-bit operands that are gradients of weights (linear_grad_w) give f32 where every reader
/// casts to f32 anyway: 4 bytes written an element instead of 2 written, 2 read and 4 written, and no
/// rounding in between, on every device. Run on the graph of a whole step, before casts are moved. Returns
/// how many products it changed.
size_t widen_weight_gradients(ir::Graph& graph);

}  // namespace trireme::passes
