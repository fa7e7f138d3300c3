// Einstein sums of two operands as products, sums and moves.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// einsum of two float operands of known extents that reads no diagonal -> matmul between transposes, where
/// the patterns of attention and of products see it: of [batch, heads, rows, sums] and [batch, heads, sums,
/// columns] (heads are the last letter of the batch, the other ones are joined), or without a batch of
/// [rows..., sums] and [sums, columns], where a weight is the right operand. Sums of one operand alone come
/// first; where none is over both, the rest is a mul. Repeated extents of 1 and ellipses are as other
/// letters.
size_t open_einsum(ir::Graph& graph);

}  // namespace trireme::passes
