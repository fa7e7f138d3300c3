// Products and lookups that read block-format weights as they are stored.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites products by dequantize_blocks of a constant as block_linear or block_experts, and lookups in it
/// as block_gather. Bias, activation and residual of a linear become nodes after it. This is the pass
/// "blocks".
size_t keep_blocks(ir::Graph& graph);

/// Joins products of one value by several block-format matrices, with constant biases or none, into one
/// block_linears, so that rows are rounded once and the thread team has one barrier. For the graph of one
/// rank.
size_t join_block_products(ir::Graph& graph);

/// Makes lookups in a matrix that a product reads as well use the product's packed copy.
size_t share_packed_blocks(ir::Graph& graph);

}  // namespace trireme::passes
