// Into how many slices a batch whose rows are independent is best cut.
#pragma once

#include <cstdint>

#include "compile/program.h"

namespace trireme::lower {

/// How a batch runs: `slices` equal parts one after another, or shared out over `lanes` threads.
struct SlicePlan {
  int64_t slices = 1;
  int lanes = 1;
};

/// Chooses the slices of a batch of `rows` from the program of one row. Layers whose values outgrow the cache
/// run part by part, so that one layer's result is still cached when the next reads it; with several threads
/// each takes rows of its own and never waits for the others between layers. Every slice reads all weights
/// again: the batch stays whole where they outweigh the values and, for lanes, the computation. Time is
/// bounded whatever the number of rows.
SlicePlan plan_slices(const compile::Program& one_row, int64_t rows, int threads);

}  // namespace trireme::lower
