// Fusion of the max pooling after a convolution into the convolution and its gradients.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites conv_nhwc, max_pool_nhwc of adjacent 2 x 2 windows, and their gradients as conv_pool_nhwc and its
/// gradients, where a CPU kernel accepts them, so that the image between them and its gradient are neither
/// written nor read. The gradient of a ReLU before the convolution moves into the gradient of x, that of the
/// bias into the gradient of w. Runs on the graph of a training step. Results keep their bits, except the
/// bias's gradient, which is summed in another order.
size_t fuse_pooled_convs(ir::Graph& graph);

}  // namespace trireme::passes
