// The CPU kernels of the image family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> resize_cpu_kernels();
std::vector<ir::Kernel> upsample_cpu_kernels();
std::vector<ir::Kernel> grid_sample_cpu_kernels();
std::vector<ir::Kernel> affine_grid_cpu_kernels();

}  // namespace trireme::ops
