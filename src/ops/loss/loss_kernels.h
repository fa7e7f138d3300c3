// The CPU kernels of the losses, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> nll_loss_cpu_kernels();
std::vector<ir::Kernel> softmax_cross_entropy_loss_cpu_kernels();
std::vector<ir::Kernel> class_loss_grad_cpu_kernels();
std::vector<ir::Kernel> cross_entropy_cpu_kernels();
std::vector<ir::Kernel> cross_entropy_grad_cpu_kernels();
std::vector<ir::Kernel> cross_entropy_part_cpu_kernels();
std::vector<ir::Kernel> cross_entropy_total_cpu_kernels();
std::vector<ir::Kernel> cross_entropy_join_cpu_kernels();

}  // namespace trireme::ops
