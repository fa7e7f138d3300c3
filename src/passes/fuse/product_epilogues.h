// Activations of training steps, and their slopes, at the end of the products before them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// On a device, GELU in its tanh form moves into the linear before it though others read the argument too
/// (the product then has that as a second result), and its gradient into the linear_grad_x before it. Only
/// what cuBLASLt does in the product's own pass: other activations would be a pass of their own behind it.
/// Run last, on what recomputation left. Returns how many nodes moved.
size_t finish_in_products(ir::Graph& graph);

}  // namespace trireme::passes
