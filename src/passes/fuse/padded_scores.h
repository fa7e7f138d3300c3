// Scores of a vocabulary get as many columns as products of a device like.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// linear -> cross_entropy (or cross_entropy_part) and its gradient, where the number of classes is no
/// multiple of 64: the weight gets rows of zeros up to the next one, so that rows of scores begin at
/// multiples of 128 bytes and products run on aligned kernels; the loss skips the columns behind the last
/// class (attribute `padded`), whose gradients are 0, and the weight's gradient is cut to its own rows. No
/// parameter, state or file changes its shape. Scores that anything else reads, and fewer than 256 classes,
/// stay as they are. Run on the graph of a rank's step: what ranks split is padded part by part. Returns how
/// many products of scores it changed.
size_t pad_scores(ir::Graph& graph);

}  // namespace trireme::passes
