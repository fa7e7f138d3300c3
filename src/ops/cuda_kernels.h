// How kernels for NVIDIA GPUs join the operators of op_list.inc: lists by operator name, made in x_cuda.cc
// files.
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
