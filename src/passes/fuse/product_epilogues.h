// Fusion, on devices, of the activations of training steps and their gradients into the products before them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// On a device, GELU in its tanh form moves into the linear before it, even where other nodes read its
/// argument (the product then has the argument as a second result), and its gradient into the linear_grad_x
/// before it. Only GELU, because cuBLASLt computes it in the product's epilogue; another activation would
/// need a pass of its own. Runs last, after recomputation. Returns the number of nodes that were moved.
size_t finish_in_products(ir::Graph& graph);

}  // namespace trireme::passes
