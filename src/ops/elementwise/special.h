// Elementwise ops whose attributes or operand types do not fit a table row: shared between schema and kernel
// files.
#pragma once

#include "ops/elementwise/elementwise.h"

namespace trireme::ops {

RowFn pow_row(tensor::DType base, tensor::DType exponent);
RowFn bit_shift_row(tensor::DType dtype);
RowFn gelu_row(tensor::DType dtype, bool is_tanh);
RowFn where_row(tensor::DType dtype);
RowFn clip_row(tensor::DType dtype);

std::vector<ir::Kernel> pow_cpu_kernels();
std::vector<ir::Kernel> bit_shift_cpu_kernels();
std::vector<ir::Kernel> gelu_cpu_kernels();
std::vector<ir::Kernel> where_cpu_kernels();
std::vector<ir::Kernel> clip_cpu_kernels();
std::vector<ir::Kernel> dropout_cpu_kernels();
std::vector<ir::Kernel> gelu_grad_cpu_kernels();
std::vector<ir::Kernel> clip_grad_cpu_kernels();

}  // namespace trireme::ops
