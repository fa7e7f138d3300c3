// Fusion of the gradient of a convolution's bias into the gradient of its weights.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites conv_nhwc_grad_w(x, dy) and the sum of dy over all pixels as one conv_nhwc_grad_w with both
/// results, where a CPU kernel accepts it, so that dy is read once. Runs on the graph of a training step.
size_t fuse_conv_bias_sums(ir::Graph& graph);

}  // namespace trireme::passes
