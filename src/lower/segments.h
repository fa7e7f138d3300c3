// Splits a bound graph at the nodes whose shapes depend on data.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// A bound graph in three parts. In `ready` all shapes are static. The `frontier` nodes (ids of the bound
/// graph) have all their operands once `ready` has run, but the shapes of their results depend on data, or
/// they run subgraphs. `rest` holds the remaining nodes; its inputs are the values that it reads from the
/// other two.
struct Segments {
  ir::Graph ready;
  std::vector<ir::ValueId> ready_outputs;  ///< ids in the bound graph, in order of ready.outputs()
  std::vector<ir::NodeId> frontier;
  ir::Graph rest;
  std::vector<ir::ValueId> rest_inputs;  ///< ids in the bound graph, in order of rest.inputs()
  bool complete = false;                 ///< ready computes all outputs; frontier and rest are empty
};

Segments cut_segments(const ir::Graph& bound);

}  // namespace trireme::lower
