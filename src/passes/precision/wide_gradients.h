// Weight gradients that stay f32, as they were summed, where all readers need f32.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Makes linear_grad_w with 16-bit operands return f32 where every reader casts its result to f32: 4 bytes
/// are written for each element, instead of 2 written, 2 read and 4 written, and nothing is rounded in
/// between, on every device. Runs on the graph of a whole step, before casts are moved. Returns the number of
/// products changed.
size_t widen_weight_gradients(ir::Graph& graph);

}  // namespace trireme::passes
