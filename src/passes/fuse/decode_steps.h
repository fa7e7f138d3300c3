// Fusion of a decoding step on a device into few launches.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// For device programs with static shapes: rotary embedding, kv_append and paged attention become one
/// decode_attention, for any number of rows. Products of one input with few rows become a row_linear together
/// with the norm before them and, for a gated pair, the gate after them. Only where a kernel of the device
/// accepts the node. Runs last, when values have their final types. Returns the number of nodes that were
/// added.
size_t fuse_decode_steps(ir::Graph& graph);

}  // namespace trireme::passes
