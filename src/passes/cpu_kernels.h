// Whether a node that a pass considers adding has a CPU kernel.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// Whether a CPU kernel accepts `node` with that many results. Its operands are values of `graph`; an operand
/// that does not exist yet is kNoValue, and `made` lists the types of those operands in order.
bool has_cpu_kernel(const ir::Graph& graph, const ir::Node& node, size_t results,
                    const std::vector<tensor::TensorType>& made = {});

}  // namespace trireme::passes
