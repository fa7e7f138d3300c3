// Runs of elementwise nodes become one node that passes over memory once.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Groups f32 elementwise nodes of one result shape whose intermediate values nobody else reads into
/// fused_elementwise.
size_t fuse_elementwise(ir::Graph& graph);

}  // namespace trireme::passes
