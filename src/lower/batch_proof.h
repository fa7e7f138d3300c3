// Whether a model may be batched without being told: a proof over its graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// Returns an empty text if the first dimension of every input is symbolic and row i of every result provably
/// depends on row i of the inputs alone; otherwise the reason, naming the node that mixes rows or the input.
/// Other symbolic dimensions are tried with several extents, and the proof must succeed for each that the
/// graph accepts. Cost: milliseconds for each.
std::string why_not_batched(const ir::Graph& graph);

/// Returns an empty text if the results have an inner dimension of some inputs (a length) and position i of
/// it depends on position i of the inputs alone, so that padding changes no other position; otherwise the
/// reason. `dims`: that dimension of each input. A model that masks padding is not proven: what a mask hides
/// depends on values.
std::string why_positions_meet(const ir::Graph& graph, const std::vector<std::optional<size_t>>& dims);

/// Whether, for a batch of these shapes, every input has the same number of rows (its outermost dimension,
/// symbolic in the graph) and row i of every result provably depends on row i of the inputs alone.
bool rows_are_independent(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);

}  // namespace trireme::lower
