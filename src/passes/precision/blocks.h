// Graphs whose weights are in block formats keep them so.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Products by dequantize_blocks of a constant become block_linear or block_experts, lookups in one
/// block_gather. What linear does behind its product follows as nodes of its own. The pass "blocks".
size_t keep_blocks(ir::Graph& graph);

/// Products of one value by several matrices in blocks, with biases that are weights or none, become one
/// block_linears: rows are rounded once, and the team meets once. For the graph of one rank.
size_t join_block_products(ir::Graph& graph);

/// Lookups in a matrix that a product reads, too, look up in the product's packed form.
size_t share_packed_blocks(ir::Graph& graph);

}  // namespace trireme::passes
