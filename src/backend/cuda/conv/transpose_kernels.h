// Transposes by tiles in shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/device/turned_tile.h"

namespace trireme::cuda {

/// y [batch, columns, rows] = x [batch, rows, columns] transposed. 2 sizeof(T) bytes an element.
template <class T>
struct Transpose {
  static constexpr int kTile = TurnedTile<T>::kTile;
  const T* x;
  T* y;
  int64_t batch, rows, columns;
  TurnedTile<T> turned;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
    for (int64_t t = lane.block(); t < batch * down * across; t += lane.blocks()) {
      const int64_t r0 = t / across % down * kTile, c0 = t % across * kTile;
      const int64_t at = t / across / down * rows * columns;
      turned.move(lane, {x + at + r0 * columns + c0, y + at + c0 * rows + r0, columns, rows, rows - r0,
                         columns - c0});
    }
  }
};

}  // namespace trireme::cuda
