// Norms in simpler ops, for devices that have no kernel of them; what gradient rules share with them.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

/// The mean of x over the axes, which keep an extent of 1.
ValueId mean_over(GradBuilder& g, ValueId x, const std::vector<int64_t>& axes);

/// Reshapes [c] to [c, 1, ...], which broadcasts to x [n, c, ...].
ValueId as_channels(GradBuilder& g, ValueId vector, const tensor::Dims& x);

std::vector<ValueId> expand_lp_norm(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_mean_variance_norm(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_batch_norm(ir::Graph& graph, const ir::Node& node);

}  // namespace trireme::ops
