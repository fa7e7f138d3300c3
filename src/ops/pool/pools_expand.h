// Poolings in simpler ops, for devices that have no kernel of them.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

/// Zeros with x scattered to the places that the indices name.
std::vector<ValueId> expand_max_unpool(ir::Graph& graph, const ir::Node& node);
/// (sum |x|^p)^(1/p) over all spatial axes.
std::vector<ValueId> expand_global_lp_pool(ir::Graph& graph, const ir::Node& node);

}  // namespace trireme::ops
