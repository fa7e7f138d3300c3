// Fusion of norms with what follows them in training: batch norms before differentiation, other norms after
// it.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites relu(bn(x)), relu(bn(x) + residual) and bn(x) + residual as one batch_norm_train node each, so
/// that forward and backward each pass over memory two times instead of four or five. Shapes must be static.
/// A batch norm whose own result another node reads is left alone.
size_t fuse_train_norms(ir::Graph& graph);

/// Moves the addition of another gradient to the dx of layer_norm_grad or rms_norm_grad into that node: the
/// gradient of a residual connection around the norm then costs one read instead of two reads and a write.
/// Runs on the graph of a training step.
size_t fuse_norm_gradient_sums(ir::Graph& graph);

}  // namespace trireme::passes
