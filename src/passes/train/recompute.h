// Trades time for memory: activations that the backward pass reads are computed again instead of kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/strategy_options.h"

namespace trireme::passes {

struct RecomputePlan {
  RecomputeMode mode = RecomputeMode::none;
  /// Forward nodes whose results are computed again, each by its operator, its layer and how many such nodes
  /// stand before it: ranks whose graphs differ in their collectives, and so in the indices of their nodes,
  /// can follow one plan.
  std::vector<std::string> again;
  int64_t kept_bytes = 0;  ///< activations kept for the backward pass
  double flop = 0;         ///< work done twice
};

/// Decides which forward nodes of a step graph (sorted, static shapes, all other passes done) run twice.
/// `segments`: how many pieces `full` cuts the forward pass into; 0: the number that needs least memory by
/// kept bytes plus the largest piece (Chen et al. 2016).
RecomputePlan plan_recompute(const ir::Graph& graph, RecomputeMode mode, size_t segments = 0);

/// Places where `full` may cut: one value crosses them.
size_t count_cuts(const ir::Graph& graph);

/// Clones the planned nodes for their backward readers. Clones are exact copies (the same kernels, the same
/// random numbers), so every result keeps its bits. Nodes of the plan that the graph has not are left out.
/// Returns the number of clones.
size_t recompute(ir::Graph& graph, const RecomputePlan& plan);

}  // namespace trireme::passes
