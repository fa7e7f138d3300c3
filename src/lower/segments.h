// Splits a bound graph at the nodes whose shapes depend on data.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

/// Nodes of a bound graph that run after others, as a graph of their own.
struct LaterPart {
  ir::Graph graph;
  std::vector<ir::ValueId> inputs;   ///< ids in the bound graph, in order of graph.inputs()
  std::vector<ir::ValueId> outputs;  ///< likewise, what later parts or callers read
};

/// A bound graph in parts. In `ready` all shapes are static. The `frontier` nodes (ids of the bound graph)
/// have all their operands once `ready` has run, but the shapes of their results depend on data, or they run
/// subgraphs. `rest` holds the remaining nodes, divided in order where a part must wait for a node like those
/// of the frontier in the part before: such nodes follow from the bound graph alone, so a chain of n of them
/// is divided once, into parts that are bound when they run.
struct Segments {
  ir::Graph ready;
  std::vector<ir::ValueId> ready_outputs;  ///< ids in the bound graph, in order of ready.outputs()
  std::vector<ir::NodeId> frontier;
  std::vector<LaterPart> rest;
  bool complete = false;  ///< ready computes all outputs; frontier and rest are empty
};

Segments cut_segments(const ir::Graph& bound);

}  // namespace trireme::lower
