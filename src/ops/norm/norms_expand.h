// Norms in simpler ops, for devices that have no kernel of them.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

std::vector<ValueId> expand_lp_norm(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_mean_variance_norm(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_batch_norm(ir::Graph& graph, const ir::Node& node);

}  // namespace trireme::ops
