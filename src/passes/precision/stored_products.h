// Weights of 4, 8 and 16 bits stay as they are stored under the products and lookups that read them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Products of rows by dequantize_weights become weight_only_linear or weight_only_experts, lookups of 16-bit
/// rows are widened behind the lookup. Columns that are stored in another order are met by moving the
/// channels of the rows. What no product reads so is computed now: such weights become f32. Returns how many
/// nodes it changed.
size_t keep_stored_weights(ir::Graph& graph);

/// Weights of 16-bit floats, and of 8-bit floats if `all_floats`, become f32 params of their names, as other
/// precisions and ways of storing take them. Those in whole numbers stay. Returns how many it widened.
size_t widen_stored_floats(ir::Graph& graph, bool all_floats);

}  // namespace trireme::passes
