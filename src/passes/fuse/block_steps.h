// Fusion, on CPUs, of what stands between products with block-format weights into these products.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// For CPU programs with static shapes: RMS norms and residuals move into the neighbouring products with
/// block-format weights, gates into the two products that they join, and everything between an attention's
/// projections and its result into one block_attention. This saves barriers of the thread team. Results have
/// the same bits as before. Returns the number of nodes that were added.
size_t fuse_block_steps(ir::Graph& graph);

}  // namespace trireme::passes
