// Batch norms of a training graph take in what follows them, before the graph is differentiated.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// relu(bn(x)) and relu(bn(x) + residual) become one batch_norm_train node each, and bn(x) + residual without
/// a rectifier too: forward and backward then pass over memory two times instead of four or five. Shapes are
/// static; a batch norm whose bare result is read elsewhere stays as it is.
size_t fuse_train_norms(ir::Graph& graph);

}  // namespace trireme::passes
