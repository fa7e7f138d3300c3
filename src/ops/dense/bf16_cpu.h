// Kernels of linear and its gradients on the processor's own bf16 products.
#pragma once

#include "backend/cpu/dense/gemm_bf16.h"
#include "ops/dense/blocks_cpu.h"

namespace trireme::ops {

/// Binds a product whose operands and results are all bf16; results as in bind_blocks.
ir::BoundKernel bind_bf16(const cpu::Bf16Product& product, BlockOperands operands,
                          const ir::KernelInit& init);

/// Refuses empty operands, types other than bf16 and processors without such products.
ir::Refusal refuse_bf16(const ir::NodeView& node);

/// `kernels` with `kernel` before the ones that go through f32.
std::vector<ir::Kernel> with_bf16(std::vector<ir::Kernel> kernels, ir::Kernel kernel);

}  // namespace trireme::ops
