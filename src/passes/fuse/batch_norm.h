// Batch normalization of inference becomes part of the products before it.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Folds batch normalization after a convolution or matrix product with constant weights into those weights:
/// w' = w * scale / sqrt(var + eps) per output channel, b' = (b - mean) * scale / sqrt(var + eps) + bias.
size_t fold_batch_norm(ir::Graph& graph);

/// batch_norm of f32 with known statistics that no convolution could take -> x * scale + shift, which follow
/// any layout and run with the elementwise ops beside them.
size_t open_batch_norm(ir::Graph& graph);

}  // namespace trireme::passes
