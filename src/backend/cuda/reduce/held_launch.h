// The grid of rows that blocks keep in registers. For .cu files.
#pragma once

#include "backend/cuda/device/launch.h"
#include "backend/cuda/reduce/held_rows.h"

namespace trireme::cuda {

/// A block a row of n.
inline Launch held_launch(tensor::Stream& stream, int64_t rows, int64_t n, const HeldForm& form) {
  return {blocks_for(cuda_stream(stream), rows, 32), form.threads_of(n), kHeldSharedBytes};
}

}  // namespace trireme::cuda
