// Reductions over axes: the table of what is summed, and how the axes of a node are read.
#pragma once

#include "ir/kernel.h"
#include "ops/grad.h"

namespace trireme::ops {

enum class Reduction : uint8_t { sum, mean, max, min, prod, l1, l2, log_sum, log_sum_exp, sum_square };

/// Axes of a reduce op: the operand or all; nothing when noop_with_empty_axes asks for the identity.
/// reduced[d] says whether dimension d goes. Needs a known axes operand.
std::vector<bool> reduced_axes(const ir::NodeView& node);

std::vector<ir::Kernel> reduce_cpu_kernels(Reduction reduction);
std::vector<ir::Kernel> arg_cpu_kernels(bool is_max);
std::vector<ir::Kernel> scan_cpu_kernels(bool is_product);
std::vector<ir::Kernel> cum_prod_grad_cpu_kernels();

/// Sums and maxima may be cut along what they reduce, the other reductions along what they keep.
ir::CutFn reduce_cut(Reduction reduction);
/// Along all dimensions but the one of the attribute `axis` (arg_max) or of the axis operand `axis_operand`.
ir::CutRule arg_cut(const ir::NodeView& node);
ir::CutFn scan_cut(size_t axis_operand, std::vector<uint32_t> linear);

/// log(sum of e^(x - max x)) + max x.
std::vector<ValueId> expand_log_sum_exp(ir::Graph& graph, const ir::Node& node);
ir::GradFn reduce_grad(Reduction kind);
Gradients cum_sum_rule(GradBuilder& g);
Gradients cum_prod_rule(GradBuilder& g);

}  // namespace trireme::ops
