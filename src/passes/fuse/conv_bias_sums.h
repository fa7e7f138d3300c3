// The gradient of a bias moves into the gradient of the weights of its convolution.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// conv_nhwc_grad_w(x, dy) and the sum of dy over all pixels -> one conv_nhwc_grad_w with both results, where
/// a CPU kernel takes it: dy is read once. Run on the graph of a step.
size_t fuse_conv_bias_sums(ir::Graph& graph);

}  // namespace trireme::passes
