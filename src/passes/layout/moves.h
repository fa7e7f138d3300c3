// Chains of transposes and reshapes: what they do together.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Chains of transposes and views with more than one transpose -> one transpose, or none, between two
/// reshapes. Axes are split into the parts that the chain moves as wholes; where those end in their first
/// order nothing moves at all, as between a sequence [n, h w, c] and an image [n, h, w, c] by way of [n, c,
/// h, w].
size_t merge_moves(ir::Graph& graph);

/// The same in graphs with channels-last convolutions, where a view behind a single transpose also moves
/// before it if it can: sink_transposes then sees the transpose.
size_t merge_image_moves(ir::Graph& graph);

}  // namespace trireme::passes
