// Einstein sums that are batched products of matrices.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// einsum of two operands, each letter once in an operand, at least one letter in both and the result ->
/// matmul of [batch, heads, rows, sums] and [batch, heads, sums, columns] between transposes, where the
/// patterns of attention see it. Heads are the last letter of the batch, the other ones are joined.
size_t open_einsum(ir::Graph& graph);

}  // namespace trireme::passes
