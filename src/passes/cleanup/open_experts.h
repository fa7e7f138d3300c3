// Products over experts as products over all of them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Replaces expert_linear by its expansion: every expert computes every token, weighted by 0 where it was not
/// chosen. For training, whose gradients are those of dense products, and for devices, which have no kernel
/// that sorts rows. Returns how many it replaced.
size_t open_expert_products(ir::Graph& graph);

}  // namespace trireme::passes
