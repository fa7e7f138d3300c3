// The CPU kernels of the softmax family, listed op by op, and the loops of all kernels of it.
#pragma once

#include <vector>

#include "ops/kernel_forms.h"

namespace trireme::ops {

/// The lines of a node's operand along its axis.
inline AxisLoops softmax_loops(const ir::NodeView& node) {
  const tensor::Dims dims = node.in_dims(0);
  if (dims.empty()) return {};
  return axis_loops(dims, ir::normal_axis(node.attrs.get_int("axis", -1), dims.size()));
}

std::vector<ir::Kernel> softmax_cpu_kernels();
std::vector<ir::Kernel> log_softmax_cpu_kernels();
std::vector<ir::Kernel> hardmax_cpu_kernels();
std::vector<ir::Kernel> softmax_grad_cpu_kernels(bool logarithm);

}  // namespace trireme::ops
