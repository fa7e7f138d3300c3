// The pattern around paged attention in a decoding step, for the passes that fuse it.
#pragma once

#include <optional>

#include "passes/rewriter.h"

namespace trireme::passes {

/// Operand `i` of a node; kNoValue where it is left out.
ir::ValueId operand(const ir::Node& node, size_t i);

/// Whether a fused_elementwise node computes silu(i0) * i1, the gate of products that have no activation.
bool is_silu_gate(const ir::Node& node);

/// The rotary embeddings, kv_append and attention of one layer as a node that is not in the graph yet.
struct DecodeAttention {
  ir::Node node;      ///< a decode_attention
  ir::ValueId y;      ///< what its first result replaces
  ir::NodeId append;  ///< the node that writes the pages at present
};
/// Finds them around a paged attention; nullopt if another node reads the pages that they write.
std::optional<DecodeAttention> decode_attention_of(const Rewriter& rw, const ir::Node& attention);

}  // namespace trireme::passes
