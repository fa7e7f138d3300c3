// Whether a model may be batched without being told: a proof over its graph.
#pragma once

#include "ir/graph.h"

namespace trireme::engine {

/// True if the first dimension of every input is open and, bound to a batch of a few rows, no row of any
/// result depends on another row of the inputs. False where that cannot be shown, for example when the first
/// dimension is time.
bool batches_by_rows(const ir::Graph& graph);

}  // namespace trireme::engine
