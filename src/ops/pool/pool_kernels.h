// The CPU kernels of the pooling family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> max_pool_cpu_kernels();
std::vector<ir::Kernel> average_pool_cpu_kernels();
std::vector<ir::Kernel> lp_pool_cpu_kernels();
std::vector<ir::Kernel> global_average_pool_cpu_kernels();
std::vector<ir::Kernel> global_max_pool_cpu_kernels();
std::vector<ir::Kernel> global_lp_pool_cpu_kernels();
std::vector<ir::Kernel> max_unpool_cpu_kernels();
std::vector<ir::Kernel> max_roi_pool_cpu_kernels();
std::vector<ir::Kernel> roi_align_cpu_kernels();
std::vector<ir::Kernel> max_pool_grad_cpu_kernels();
std::vector<ir::Kernel> average_pool_grad_cpu_kernels();
std::vector<ir::Kernel> roi_align_grad_cpu_kernels();

}  // namespace trireme::ops
