// deform_conv in simpler ops: the form it is differentiated in.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

/// Samples by grid_sample, scales by the mask, and multiplies the columns with the weights. Static shapes.
std::vector<ValueId> expand_deform_conv(ir::Graph& graph, const ir::Node& node);

}  // namespace trireme::ops
