// The grid of column_pieces. For .cu files.
#pragma once

#include "backend/cuda/device/launch.h"
#include "backend/cuda/reduce/columns.h"

namespace trireme::cuda {

/// A block a tile of column_pieces.
template <class T>
Launch column_launch(tensor::Stream& stream, const ColumnGrid& grid) {
  return {blocks_for(cuda_stream(stream), grid.pieces * grid.across), ColumnGrid::kThreads,
          kColumnPiecesBytes<T>};
}

}  // namespace trireme::cuda
