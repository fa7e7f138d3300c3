// Vector kernels of pooling in ONNX layout.
#pragma once

#include "backend/cpu/conv/pool_planes.h"
#include "backend/cpu/norm/reduce_axes.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {

/// Pieces of the rows of a result, which go over the team; each has a scratch of its own.
inline constexpr int64_t kPoolPieces = 32;

/// Windows by whole rows; of max_pool and average_pool.
ir::Kernel pool_lines_kernel(cpu::PoolFold fold);
/// Of max_pool with indices.
ir::Kernel placed_lines_kernel();
/// Of lp_pool, for the norms 1 and 2.
ir::Kernel lp_lines_kernel();
/// Whole planes: mean, max, or (l2) the p-norm for p of 1 and 2.
ir::Kernel whole_planes_kernel(cpu::ReduceOp op);

}  // namespace trireme::ops
