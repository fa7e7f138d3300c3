// The partition pass along one mesh axis: node by node, choose, convert operands, add this rank's part.
#pragma once

#include <optional>

#include "passes/partition/partition_choice.h"

namespace trireme::passes {

/// The pass leaves this axis alone, or there is nothing to do on it.
bool is_untouched(const Partitioning& how, const tensor::MeshAxis& axis);

/// The rank's graph along one axis; `from` is whole on it. Throws as partition() does.
ir::Graph partition_axis(const ir::Graph& from, const Partitioning& how, const AxisRank& rank);

/// Simpler nodes, appended to `graph`, for a node that as it is could not be cut where its operands are:
/// products without what is added once (bias, residual, activation), means as scaled sums. Returns the value
/// that replaces result 0; nullopt where the node is good as it is.
std::optional<ir::ValueId> simplify_for_cut(ir::Graph& graph, const ir::Node& node, AxisValues& values);

}  // namespace trireme::passes
