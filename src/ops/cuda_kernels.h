// Kernels for NVIDIA GPUs by operator name. Files x_cuda.cc make the lists, which the table joins to the
// operators of op_list.inc.
#pragma once

#include <string>
#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

/// Kernels of one operator, in the order they are tried. The table sets Kernel::on.
struct CudaKernels {
  std::string op;
  std::vector<ir::Kernel> kernels;
};

}  // namespace trireme::ops
