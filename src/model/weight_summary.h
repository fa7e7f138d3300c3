// What a file's matrices are read as, and how many bytes of them a token reads.
#pragma once

#include <string>

#include "ir/graph.h"

namespace trireme::model {

/// One line for matrices of one name, extents and form in all layers: what the file has, what products read,
/// the bytes of one; and a line with the bytes that a new token reads: of every matrix under a product, of
/// experts those that are chosen for it, and one row of tables that are only looked up. Empty for a graph
/// without experts whose weights are all plain.
std::string describe_stored_weights(const ir::Graph& graph);

}  // namespace trireme::model
