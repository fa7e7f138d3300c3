// Branches of `if` nodes whose conditions are known: what is differentiated has no subgraphs.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// Puts the nodes of the branch that is taken in place of each `if` whose condition is known, or follows from
/// constants and static shapes. What a branch captured of the params of the graph it reads from there again;
/// other weights in it become params. Changes nothing in graphs without `if`. Returns how many it opened.
size_t open_known_branches(ir::Graph& graph);

/// Throws unsupported, naming node and weight, where a subgraph that is left holds a weight, its own or that
/// of a param outside, whose name contains none of `freeze`: nothing would train it there.
void refuse_weights_in_bodies(const ir::Graph& graph, const std::vector<std::string>& freeze);

}  // namespace trireme::lower
