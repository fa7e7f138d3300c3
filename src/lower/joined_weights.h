// Weights that passes put side by side, made once for all programs of a model.
#pragma once

#include "base/memory/shared_cache.h"
#include "compile/program.h"
#include "ir/graph.h"

namespace trireme::lower {

/// Computes the `concat` nodes of constants under products (passes::join_projections leaves them). Matrices
/// are shared through `packs` by all buckets and instances, and live as long as a program reads them.
/// `later`: they stay without memory (tensor/joined.h) for kernels that pack them.
void join_weights(ir::Graph& graph, base::SharedCache& packs, bool later);

/// Gives those that the steps of a compiled program read as they are their content. To be called before it
/// runs.
void fill_read_joined(const compile::Program& program, base::SharedCache& packs);

}  // namespace trireme::lower
