// Random tensors: the distributions and their draws as functions of (seed, element).
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> random_cpu_kernels(bool is_normal);
std::vector<ir::Kernel> bernoulli_cpu_kernels();
std::vector<ir::Kernel> multinomial_cpu_kernels();

}  // namespace trireme::ops
