// Padding of vocabulary scores to a number of columns for which a device has fast products.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// For linear -> cross_entropy (or cross_entropy_part) and its gradient, where the number of classes is not a
/// multiple of 64: pads the weight with rows of zeros to the next multiple, so that each row of scores begins
/// at a multiple of 128 bytes and products use aligned kernels. The loss skips the padding columns (attribute
/// `padded`), whose gradients are 0, and the weight's gradient is cut to its own rows. No parameter, state or
/// file changes its shape. Scores that other nodes read, and fewer than 256 classes, are left alone. Runs on
/// the graph of a rank's training step, so that each rank pads its own part. Returns the number of products
/// changed.
size_t pad_scores(ir::Graph& graph);

}  // namespace trireme::passes
