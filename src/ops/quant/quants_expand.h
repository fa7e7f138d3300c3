// Products of bytes in simpler ops of f64, in which their sums are exact.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

std::vector<ValueId> expand_qlinear_matmul(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_conv_integer(ir::Graph& graph, const ir::Node& node);
std::vector<ValueId> expand_qlinear_conv(ir::Graph& graph, const ir::Node& node);

}  // namespace trireme::ops
