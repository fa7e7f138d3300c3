// Fusion of the gradient of a convolution's bias into the gradient of its weights.
#pragma once

#include "passes/rewriter.h"

namespace trireme::passes {

/// Rewrites conv_nhwc_grad_w(x, dy) and the sum of dy over all pixels as one conv_nhwc_grad_w with both
/// results, where a CPU kernel accepts it, so that dy is read once. Runs on the graph of a training step.
size_t fuse_conv_bias_sums(ir::Graph& graph);

/// Whether the sum is over all pixels of images [n, h, w, c], which leaves [c].
bool sums_all_pixels(const Rewriter& rw, const ir::Node& sum);

}  // namespace trireme::passes
