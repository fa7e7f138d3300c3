// Einstein sums of two operands as products, sums and moves.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites an einsum of two float operands of known extents that reads no diagonal as a matmul between
/// transposes, so that the patterns of attention and of products recognise it: of [batch, heads, rows, sums]
/// and [batch, heads, sums, columns], where `heads` is the last letter of the batch and the others are
/// joined, or without a batch of [rows..., sums] and [sums, columns], where a weight is the right operand.
/// Sums over one operand alone are taken first; where none is over both, the rest is a mul. Repeated extents
/// of 1 and ellipses are letters like others.
size_t open_einsum(ir::Graph& graph);

}  // namespace trireme::passes
