// The CPU kernels of the softmax family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> softmax_cpu_kernels();
std::vector<ir::Kernel> log_softmax_cpu_kernels();
std::vector<ir::Kernel> hardmax_cpu_kernels();
std::vector<ir::Kernel> softmax_grad_cpu_kernels(bool logarithm);

}  // namespace trireme::ops
