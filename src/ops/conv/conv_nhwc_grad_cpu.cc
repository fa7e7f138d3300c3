// conv_nhwc_grad_x and conv_nhwc_grad_w on CPU.
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {

std::vector<ir::Kernel> conv_nhwc_grad_x_cpu_kernels() { return {}; }
std::vector<ir::Kernel> conv_nhwc_grad_w_cpu_kernels() { return {}; }

}  // namespace trireme::ops
