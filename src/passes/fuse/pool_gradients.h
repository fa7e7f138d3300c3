// Fusion of the gradient of a ReLU into that of the max pooling after it.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites relu_grad(max_pool_nhwc_grad(y, dp), y) as one max_pool_nhwc_grad that also checks the sign of
/// the maximum it finds, so that one pass over the image suffices. Runs on the graph of a training step.
size_t fuse_pool_gradients(ir::Graph& graph);

}  // namespace trireme::passes
