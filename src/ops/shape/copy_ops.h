// Ops that only move elements along steps: how each plans its copies.
#pragma once

#include "ops/grad.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {

std::vector<CopyJob> plan_transpose(const ir::NodeView& node);
std::vector<CopyJob> plan_expand(const ir::NodeView& node);
std::vector<CopyJob> plan_tile(const ir::NodeView& node);
std::vector<CopyJob> plan_concat(const ir::NodeView& node);
std::vector<CopyJob> plan_split(const ir::NodeView& node);
std::vector<CopyJob> plan_slice(const ir::NodeView& node);
std::vector<CopyJob> plan_depth_to_space(const ir::NodeView& node);
std::vector<CopyJob> plan_space_to_depth(const ir::NodeView& node);
std::vector<CopyJob> plan_slice_grad(const ir::NodeView& node);

/// slice_grad: zeros, then dy where the slice lay.
ir::Kernel slice_grad_cpu_kernel();

/// The gradient is the gradient of the result in the operand's shape.
Gradients view_rule(GradBuilder& g);
Gradients transpose_rule(GradBuilder& g);
Gradients expand_rule(GradBuilder& g);
Gradients tile_rule(GradBuilder& g);
Gradients concat_rule(GradBuilder& g);
Gradients split_rule(GradBuilder& g);
Gradients slice_rule(GradBuilder& g);
Gradients depth_to_space_rule(GradBuilder& g);
Gradients space_to_depth_rule(GradBuilder& g);

}  // namespace trireme::ops
