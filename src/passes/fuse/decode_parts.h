// What stands around attention over pages in a decoding step, for passes that gather it.
#pragma once

#include <optional>

#include "passes/rewriter.h"

namespace trireme::passes {

/// Operand `i` of a node; kNoValue where it is left out.
ir::ValueId operand(const ir::Node& node, size_t i);

/// silu(i0) i1, as a chain of elementwise steps behind products that have no activation of their own.
bool is_silu_gate(const ir::Node& node);

/// Rotations, append and attention as one node that is not in the graph yet.
struct DecodeAttention {
  ir::Node node;      ///< a decode_attention
  ir::ValueId y;      ///< what its first result replaces
  ir::NodeId append;  ///< writes the pages now
};
/// Those around an attention over pages; nullopt where something else reads what they make of pages.
std::optional<DecodeAttention> decode_attention_of(const Rewriter& rw, const ir::Node& attention);

}  // namespace trireme::passes
