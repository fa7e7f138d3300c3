// Fusion of elementwise nodes into one that passes over memory once.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Groups f32 elementwise nodes with the same result shape, whose intermediate values no other node reads,
/// into fused_elementwise nodes.
size_t fuse_elementwise(ir::Graph& graph);

}  // namespace trireme::passes
