// From a graph that was exported in training mode to the same network as it is evaluated and served.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Sets the modes that a file states to inference: a batch_norm takes its running statistics, and a dropout
/// keeps all elements. The training form (to_training) does not depend on these modes, with one exception: in
/// a graph with batch norms in either mode, those in inference mode are meant to stay so, and are marked. A
/// norm in training mode whose statistics are no tensors of the file (PyTorch's track_running_stats=False)
/// takes those of its batch, by nodes of their own. Returns how many nodes changed. Throws unsupported if a
/// mask, or statistics that a batch norm updates, are read.
size_t to_inference(ir::Graph& graph);

/// Whether a batch norm of the graph is in training mode and has running statistics.
bool states_trained_norms(const ir::Graph& graph);

/// Whether a batch norm keeps its inference form in training: its attribute training_mode says 0 explicitly.
bool is_fixed_norm(const ir::Node& norm);
void fix_norm(ir::Node& norm);

}  // namespace trireme::passes
