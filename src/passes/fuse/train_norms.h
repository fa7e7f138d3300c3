// Norms of a training graph take in what follows them: batch norms before it is differentiated, others after.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// relu(bn(x)) and relu(bn(x) + residual) become one batch_norm_train node each, and bn(x) + residual without
/// a rectifier too: forward and backward then pass over memory two times instead of four or five. Shapes are
/// static; a batch norm whose bare result is read elsewhere stays as it is.
size_t fuse_train_norms(ir::Graph& graph);

/// A sum of the dx of layer_norm_grad or rms_norm_grad and another gradient moves into that node: what a
/// residual around the norm brings back costs one read instead of two and a write. Run on the graph of a
/// step.
size_t fuse_norm_gradient_sums(ir::Graph& graph);

}  // namespace trireme::passes
