// Cut rules of the matrix products.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// Columns of w, rows of x; the summed index where no epilogue would be added once for every rank.
ir::CutRule linear_cut(const ir::NodeView& node);
ir::CutRule linear_grad_x_cut(const ir::NodeView& node);
ir::CutRule linear_grad_w_cut(const ir::NodeView& node);
/// matmul, matmul_integer and batched_gemm (attributes transA, transB).
ir::CutRule matmul_cut(const ir::NodeView& node);
ir::CutRule gemm_cut(const ir::NodeView& node);

}  // namespace trireme::ops
