// From the attributes of dense ops to products of the device.
#pragma once

#include "backend/cuda/dense/gemm.h"
#include "ir/kernel.h"
#include "ops/dense/activation.h"
#include "ops/dense/matmul_shape.h"

namespace trireme::ops {

cuda::ActivationForm activation_form(const ActivationSpec& spec);

/// Where each pointer of a product comes from: operand or result numbers, -1 for none.
struct GemmOperands {
  int a = 0, b = 1, bias = -1, residual = -1;
  int aux = -1;                 ///< of gradients
  int sums = -1, aux_out = -1;  ///< results
};

/// Binds a node to a product. Result 0 is the product.
ir::BoundKernel bind_gemm(const ir::KernelInit& init, const cuda::GemmShape& shape,
                          const GemmOperands& operands);

/// Refuses unless all operands have one type, f32, f16 or bf16 (f64 where `with_f64`).
ir::Refusal refuse_products(const ir::NodeView& node, bool with_f64 = false);

/// The batches of a product as two nested strides, or as a list of single ones.
bool set_batches(cuda::GemmShape& shape, const MatmulShape& batches);

}  // namespace trireme::ops
