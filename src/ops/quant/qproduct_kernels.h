// The CPU kernels of the quantized products, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> qlinear_cpu_kernels();
std::vector<ir::Kernel> qconv_nhwc_cpu_kernels();
std::vector<ir::Kernel> qadd_cpu_kernels();

}  // namespace trireme::ops
