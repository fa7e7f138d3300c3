// Products of matrices in either orientation, for gradient rules and kernels.
#pragma once

#include "ops/dense/matmul_shape.h"
#include "ops/grad.h"

namespace trireme::ops {

/// y = op(a) op(b) with the gradient dy of y.
struct ProductNode {
  ValueId a, b, dy;
  bool trans_a = false, trans_b = false;
};

/// Gradients of a and b in their own orientation, batches not yet summed to the operands' shapes.
struct BatchedProduct {
  ValueId a, b;
};

BatchedProduct product_gradients(GradBuilder& g, const ProductNode& p);

/// Adds op(a) op(b); a, b of rank >= 2.
ValueId batched_gemm(GradBuilder& g, ValueId a, ValueId b, bool trans_a, bool trans_b);

/// Extents and batch offsets of a batched_gemm node with static shapes.
MatmulShape batched_gemm_shape(const ir::NodeView& node);

}  // namespace trireme::ops
