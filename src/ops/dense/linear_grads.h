// The products of the gradient of linear: their extents and their kernels on CPU.
#pragma once

#include "ir/schema.h"
#include "ir/kernel.h"

namespace trireme::ops {

/// dy is [m, n], x is [m, k], w is [k, n] or (transposed) [n, k].
struct LinearGradExtents {
  int64_t m, k, n;
  bool transposed;
};

LinearGradExtents linear_grad_x_extents(const ir::NodeView& node);
LinearGradExtents linear_grad_w_extents(const ir::NodeView& node);

std::vector<ir::Kernel> linear_grad_x_cpu_kernels();
std::vector<ir::Kernel> linear_grad_w_cpu_kernels();

}  // namespace trireme::ops
