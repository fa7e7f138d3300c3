// Whether a model may be batched without being told: a proof over its graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// Empty if the first dimension of every input is open and row i of every result is shown to depend on row i
/// of the inputs alone; else why not, in words: the node that mixes rows, or the input. Other open dimensions
/// are tried with several extents, and every one that the graph takes must hold. Cost: milliseconds each.
std::string why_not_batched(const ir::Graph& graph);

/// Empty if the results hold an inner dimension of some inputs (a length) position by position, so that
/// positions which are filled up change no other; else why not, in words. `dims`: that dimension, by input. A
/// model that hides filled-up positions by a mask is not shown to: what a mask hides depends on values.
std::string why_positions_meet(const ir::Graph& graph, const std::vector<std::optional<size_t>>& dims);

/// Of a batch of these shapes: true if every input has as many rows (outermost dimension, open in the graph),
/// and row i of every result is shown to depend on row i of the inputs alone.
bool rows_are_independent(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);

}  // namespace trireme::lower
