// Kernels of samples at the points of a grid, for the list of the image family.
#pragma once

#include "ops/cuda_kernels.h"

namespace trireme::ops {

std::vector<CudaKernels> grids_cuda_kernels();

}  // namespace trireme::ops
