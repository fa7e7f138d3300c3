// What a node writes in place.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::ir {

/// Attribute of updates: numbers of what is written to another state as well, in another type. For each of
/// them the node has one operand more behind all others, the state, and one result more.
inline constexpr const char* kCopiesAttr = "copies";

/// Pairs of a result and the operand whose place it takes: those that the schema names and those of the
/// copies. Of absent operands there are none, nor of ops that write no state.
std::vector<StateUpdate> updates_of(const Node& node);

}  // namespace trireme::ir
