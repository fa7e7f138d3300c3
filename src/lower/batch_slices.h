// Into how many slices a batch whose rows are independent is best cut.
#pragma once

#include <cstdint>

#include "compile/program.h"

namespace trireme::lower {

/// How a batch runs: as `slices` equal parts one after another, or distributed over `lanes` threads.
struct SlicePlan {
  int64_t slices = 1;
  int lanes = 1;
};

/// Chooses the slices of a batch of `rows` from the program for one row. If the activations of a layer exceed
/// the cache, the batch runs slice by slice, so that a layer's result is still cached when the next layer
/// reads it. With several threads each takes rows of its own and never waits for the others between layers.
/// But every slice reads all weights again, so the batch stays whole where the weights outweigh the
/// activations (and, for lanes, the computation). The time this takes is bounded for any number of rows.
SlicePlan plan_slices(const compile::Program& one_row, int64_t rows, int threads);

}  // namespace trireme::lower
