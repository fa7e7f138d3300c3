// Weight matrices that passes concatenate, built once for all programs of a model.
#pragma once

#include "base/memory/shared_cache.h"
#include "compile/program.h"
#include "ir/graph.h"

namespace trireme::lower {

/// Evaluates the `concat` nodes of constants that matrix products read, as passes::join_projections creates
/// them. All buckets and instances share the matrices through `packs`; they live as long as a program reads
/// them. With `later` they get no memory (tensor/joined.h), because kernels pack them from their parts.
void join_weights(ir::Graph& graph, base::SharedCache& packs, bool later);

/// Allocates and fills the joined matrices that steps of a compiled program read unpacked. To be called
/// before the program runs.
void fill_read_joined(const compile::Program& program, base::SharedCache& packs);

}  // namespace trireme::lower
