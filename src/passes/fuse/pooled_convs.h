// The maximum behind a convolution moves into it, and into its gradients.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// conv_nhwc, max_pool_nhwc of 2 x 2 windows side by side, and their gradients -> conv_pool_nhwc and its
/// gradients, where a CPU kernel takes them: the image between them is neither written nor read, nor is its
/// gradient. The gradient of a rectifier in front moves into the gradient towards x, the bias's into that
/// towards w. Run on the graph of a step; the results keep their bits, but for the bias's gradient, whose sum
/// has another order.
size_t fuse_pooled_convs(ir::Graph& graph);

}  // namespace trireme::passes
