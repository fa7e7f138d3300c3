// Einstein sums that are batched products of matrices.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites an einsum of two operands as a matmul of [batch, heads, rows, sums] and [batch, heads, sums,
/// columns] between transposes, so that the attention patterns recognise it. Each letter must occur once in
/// an operand, and at least one in both operands and the result. The last of these letters becomes `heads`,
/// the others are joined.
size_t open_einsum(ir::Graph& graph);

}  // namespace trireme::passes
