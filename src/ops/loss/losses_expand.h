// The class losses in simpler ops: lookups of the targets' scores, sums, one-hot codes.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

std::vector<ValueId> expand_nll_loss(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_cross_entropy_loss(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_class_loss_grad(ir::Graph& graph, const ir::Node& node);

}  // namespace trireme::ops
