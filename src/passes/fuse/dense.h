// Dense products with what follows them: matmul + bias + activation + residual become one op.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// matmul and gemm with constant weights -> linear.
size_t make_linear(ir::Graph& graph);

/// Only the biases of linear and conv_nhwc: what has a gradient rule of its own.
size_t fuse_biases(ir::Graph& graph);

/// Bias, activation and residual after linear and conv_nhwc move into the op.
size_t fuse_epilogues(ir::Graph& graph);

}  // namespace trireme::passes
