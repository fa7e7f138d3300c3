// The f32 kernels of matmul and gemm that run on the CPU's dense toolkit.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> matmul_fast_kernels();
std::vector<ir::Kernel> gemm_fast_kernels();

}  // namespace trireme::ops
