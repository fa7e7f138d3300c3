// Weights of 4, 8 and 16 bits stay as they are stored under the products and lookups that read them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// A sum over experts, a product with the transposes of their stored matrices one under the other, becomes a
/// product with one stored matrix whose rows are those of the experts side by side: groups and blocks run
/// along rows, so their bytes only move. Returns how many matrices it moved.
size_t join_expert_columns(ir::Graph& graph);

/// Products of rows by dequantize_weights become weight_only_linear, lookups of 16-bit rows are widened
/// behind the lookup. Columns that are stored in another order are met by moving the channels of the rows.
/// What no product reads so is computed now: such weights become f32. Returns how many nodes it changed.
size_t keep_stored_weights(ir::Graph& graph);

/// Weights of 16-bit floats, and of 8-bit floats if `all_floats`, become f32 params of their names, as other
/// precisions and ways of storing take them. Those in whole numbers stay. Returns how many it widened.
size_t widen_stored_floats(ir::Graph& graph, bool all_floats);

}  // namespace trireme::passes
