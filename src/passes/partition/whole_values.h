// Values that a rank holds a part of, put together for an op that needs the whole, and cut again.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// The whole tensor of the extents `dims` on every rank: one all_gather for each axis that splits it.
ir::ValueId gather_whole(ir::Graph& graph, ir::ValueId part, const tensor::Dims& dims,
                         const std::vector<int>& coordinates);

/// This rank's part of a whole value, placed as `shard` says.
ir::ValueId slice_part(ir::Graph& graph, ir::ValueId whole, const tensor::Shard& shard,
                       const std::vector<int>& coordinates);

/// The state takes the value, of its type, as its content.
void assign_state(ir::Graph& graph, ir::ValueId state, ir::ValueId value);

}  // namespace trireme::passes
