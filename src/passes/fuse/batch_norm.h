// Folding of inference batch normalization into the convolutions and products before it.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Folds batch normalization after a convolution or matrix product with constant weights into those weights:
/// w' = w * scale / sqrt(var + eps) per output channel, b' = (b - mean) * scale / sqrt(var + eps) + bias.
size_t fold_batch_norm(ir::Graph& graph);

/// Rewrites the remaining f32 batch_norm nodes with constant statistics as x * scale + shift, which work in
/// any layout and are fused with the elementwise operators around them.
size_t open_batch_norm(ir::Graph& graph);

}  // namespace trireme::passes
