// Kernels of the dense ops on gemm_blocks, whose operands all change from run to run.
#pragma once

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/dense/gemm_blocks.h"
#include "ops/dense/batch_strides.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {

/// Which operands of a node are a, b, bias and residual of a product; -1: none.
struct BlockOperands {
  int a = 0, b = 1, bias = -1, residual = -1;
};

/// Binds the product; addresses come with each launch. Result 1, if any, receives the sums that the product's
/// `row_sums` or `column_sums` ask for (any non-null address).
ir::BoundKernel bind_blocks(const cpu::BlockProduct& product, BlockOperands operands,
                            const ir::KernelInit& init);

/// Batches of MatmulShape as strides of a product; operand orientations are the caller's.
void set_batches(cpu::BlockProduct& product, const BatchStrides& strides);

/// Refuses empty operands and types other than f32.
ir::Refusal refuse_blocks(const ir::NodeView& node);

}  // namespace trireme::ops
