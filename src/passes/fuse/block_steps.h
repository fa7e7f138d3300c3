// On a CPU what stands between products with weights in blocks moves into their steps.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Of programs for a CPU, with static shapes: RMS norms and residuals move into the products with weights in
/// blocks beside them, gates into the two products they join, and what lies between an attention's products
/// and its result into one block_attention. Each is a loop that the team need not meet for. Elements are
/// computed as before, to the bit. Returns how many nodes it made.
size_t fuse_block_steps(ir::Graph& graph);

}  // namespace trireme::passes
