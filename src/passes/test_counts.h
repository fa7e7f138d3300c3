// What tests of passes count in graphs.
#pragma once

#include <string_view>

#include "ir/graph.h"

namespace trireme::passes {

/// Live nodes of an op; with `attr`, those that have this attribute.
inline size_t count(const ir::Graph& graph, std::string_view op, const char* attr = nullptr) {
  size_t n = 0;
  for (const ir::Node& node : graph.nodes())
    n += node.op != nullptr && node.op_name() == op && (attr == nullptr || node.attrs.has(attr));
  return n;
}

}  // namespace trireme::passes
