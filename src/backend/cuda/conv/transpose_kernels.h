// Transposes by tiles in shared memory.
#pragma once

#include <cstdint>

#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// y [batch, columns, rows] = x [batch, rows, columns] transposed. Tiles of 32 x 32 pass through shared
/// memory so that both sides go in whole lines; its rows are one element longer, so that a column falls into
/// 32 different banks. Blocks of kThreads threads; 2 sizeof(T) bytes an element.
template <class T>
struct Transpose {
  static constexpr int kTile = 32, kThreads = 256;
  static constexpr int64_t kSharedBytes = kTile * (kTile + 1) * static_cast<int64_t>(sizeof(T));
  const T* x;
  T* y;
  int64_t batch, rows, columns;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    T* tile = lane.template shared<T>();
    const int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
    const int tx = lane.thread() % kTile, ty = lane.thread() / kTile;
    for (int64_t t = lane.block(); t < batch * down * across; t += lane.blocks()) {
      const int64_t r0 = t / across % down * kTile, c0 = t % across * kTile;
      const int64_t at = t / across / down * rows * columns;
      for (int i = ty; i < kTile; i += kThreads / kTile) {
        if (r0 + i < rows && c0 + tx < columns)
          tile[i * (kTile + 1) + tx] = x[at + (r0 + i) * columns + c0 + tx];
      }
      lane.sync();
      for (int i = ty; i < kTile; i += kThreads / kTile) {
        if (c0 + i < columns && r0 + tx < rows)
          y[at + (c0 + i) * rows + r0 + tx] = tile[tx * (kTile + 1) + i];
      }
      lane.sync();
    }
  }
};

}  // namespace trireme::cuda
