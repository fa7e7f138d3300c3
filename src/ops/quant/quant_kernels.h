// The CPU kernels of the quantization family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> quantize_linear_cpu_kernels();
std::vector<ir::Kernel> dequantize_linear_cpu_kernels();
std::vector<ir::Kernel> dynamic_quantize_linear_cpu_kernels();
std::vector<ir::Kernel> qlinear_matmul_cpu_kernels();

}  // namespace trireme::ops
