// A pass rewrites a graph. Each is named, timed, can be verified and switched off; lists/lists.h orders them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites a private copy of a graph in place. The graph is sorted before the call, and sort() must succeed
/// after it. Returns the number of places that were changed.
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

}  // namespace trireme::passes
