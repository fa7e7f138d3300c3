// The sharding types of the ops that convert placements (training contract C1): what each takes and makes.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// Results of a node on one mesh axis, or in `refusal` what is wrong: the missing or superfluous step in
/// words.
struct AxisTypes {
  std::vector<tensor::Placement> out = {};
  std::string refusal = {};
};

/// True for the ops of ops/collective, which convert placements and do not follow cut rules.
bool converts_placements(const ir::Node& node);

/// A converting node on axis `axis` of the graph's mesh. `in`: shards of its operands on all axes.
AxisTypes convert_placements(const ir::Graph& graph, const ir::Node& node,
                             const std::vector<tensor::Shard>& in, size_t axis);

/// Numbers the collectives in the order in which they best begin (attribute "order"; see ops::issue_order),
/// which Graph::sort then keeps whatever passes do around them. All ranks call it on graphs of one structure,
/// before passes that look at local extents. Sorts the graph.
void fix_collective_order(ir::Graph& graph);

}  // namespace trireme::passes
