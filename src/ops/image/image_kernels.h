// The CPU kernels of the image family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"
#include "ops/grad.h"

namespace trireme::ops {

std::vector<ir::Kernel> resize_cpu_kernels();
std::vector<ir::Kernel> upsample_cpu_kernels();
std::vector<ir::Kernel> grid_sample_cpu_kernels();
std::vector<ir::Kernel> affine_grid_cpu_kernels();
std::vector<ir::Kernel> resize_grad_cpu_kernels();
std::vector<ir::Kernel> grid_sample_grad_x_cpu_kernels();
std::vector<ir::Kernel> grid_sample_grad_grid_cpu_kernels();

Gradients resize_rule(GradBuilder& g);
Gradients upsample_rule(GradBuilder& g);
Gradients grid_sample_rule(GradBuilder& g);
Gradients affine_grid_rule(GradBuilder& g);

}  // namespace trireme::ops
