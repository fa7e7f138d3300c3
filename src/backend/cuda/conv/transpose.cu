// Launcher of transposes.
#include "backend/cuda/conv/transpose.h"

#include "backend/cuda/conv/transpose_kernels.h"
#include "backend/cuda/device/launch.h"

namespace trireme::cuda {

namespace {

/// Elements are moved as unsigned integers of their size.
template <class T>
void run_transpose(On on, const void* x, void* y, const int64_t (&e)[3]) {
  constexpr int64_t kTile = Transpose<T>::kTile;
  const int64_t tiles = e[0] * ((e[1] + kTile - 1) / kTile) * ((e[2] + kTile - 1) / kTile);
  if (tiles == 0) return;
  const TurnedTile<T> turned{is_whole_packs<T>(x, {e[2]}), is_whole_packs<T>(y, {e[1]})};
  launch(on.stream, "transpose",
         {blocks_for(cuda_stream(on.stream), tiles, 16), turned.kThreads, turned.kSharedBytes},
         Transpose<T>{static_cast<const T*>(x), static_cast<T*>(y), e[0], e[1], e[2], turned});
}

}  // namespace

void transpose(On on, const void* x, void* y, const int64_t (&extents)[3]) {
  switch (tensor::bytes_of(on.dtype, 1)) {
    case 1: return run_transpose<uint8_t>(on, x, y, extents);
    case 2: return run_transpose<uint16_t>(on, x, y, extents);
    case 4: return run_transpose<uint32_t>(on, x, y, extents);
    default: return run_transpose<uint64_t>(on, x, y, extents);
  }
}

}  // namespace trireme::cuda
