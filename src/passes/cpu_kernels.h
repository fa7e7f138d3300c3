// Whether a node that a pass would like to make has a CPU kernel.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// True if a CPU kernel takes `node` with that many results. Its operands are values of `graph`; those that
/// are still to be made stand as kNoValue, and their types in `made`, in order.
bool has_cpu_kernel(const ir::Graph& graph, const ir::Node& node, size_t results,
                    const std::vector<tensor::TensorType>& made = {});

}  // namespace trireme::passes
