// The CPU kernels of the normalisation family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> batch_norm_cpu_kernels();
std::vector<ir::Kernel> batch_norm_train_cpu_kernels();
std::vector<ir::Kernel> batch_norm_grad_cpu_kernels();
std::vector<ir::Kernel> instance_norm_cpu_kernels();
std::vector<ir::Kernel> group_norm_cpu_kernels();
std::vector<ir::Kernel> layer_norm_cpu_kernels();
std::vector<ir::Kernel> rms_norm_cpu_kernels();
std::vector<ir::Kernel> lp_norm_cpu_kernels();
std::vector<ir::Kernel> mean_variance_norm_cpu_kernels();
std::vector<ir::Kernel> lrn_cpu_kernels();
std::vector<ir::Kernel> layer_norm_grad_cpu_kernels();
std::vector<ir::Kernel> rms_norm_grad_cpu_kernels();
std::vector<ir::Kernel> lrn_grad_cpu_kernels();
std::vector<ir::Kernel> add_layer_norm_cpu_kernels();
std::vector<ir::Kernel> masked_mean_pool_cpu_kernels();
std::vector<ir::Kernel> l2_normalize_cpu_kernels();

}  // namespace trireme::ops
