// A pass turns a graph into a graph. One visible ordered list; each pass is named, timed, verified,
// switchable.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// A rewrite in place of a private copy; the graph comes sorted and must be left so that sort() succeeds.
/// Returns how many places it changed.
struct Pass {
  std::string name;
  std::string doc;
  size_t (*run)(ir::Graph& graph);
};

/// What one pass did, for `inspect` and reports.
struct PassRecord {
  std::string name;
  size_t changes = 0;
  size_t nodes_after = 0;
  double ms = 0;
};

struct PassOptions {
  std::vector<std::string> off = {};  ///< names of passes to leave out
  std::string stop_after = {};        ///< return after this pass
  bool verify = false;                ///< check every invariant after each pass
  std::function<void(const PassRecord&, const ir::Graph&)> after = {};  ///< called after each pass
};

/// Once per model, on symbolic shapes: may transform weights (folding constants, batch norm, …).
const std::vector<Pass>& prepare_passes();
/// Once per bucket, on static shapes: fusion, layouts; must not make large constants.
const std::vector<Pass>& bucket_passes();

/// Runs a list in order. Throws not_found when options name an unknown pass.
std::vector<PassRecord> run_passes(const std::vector<Pass>& list, ir::Graph& graph,
                                   const PassOptions& options = {});

/// The graph with its inputs given the static `shapes` (in order of graph.inputs()); every node is typed
/// again and small constants that follow from the shapes are computed. Nodes whose shapes depend on data stay
/// unknown. Throws invalid_argument when a shape contradicts the declared one.
ir::Graph bind_shapes(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);

}  // namespace trireme::passes
