// The two-dimensional transpose under every permutation: 16-byte vectors exchanged in registers, any element
// size.
#pragma once

#include <cstdint>

namespace trireme::cpu {

/// rows x cols elements: x[r * x_stride + c] -> y[c * y_stride + r]. Strides in elements.
struct TransposeTile {
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  bool stream = false;  // y is too large to stay in cache: whole lines of it are written past the cache
};

/// Transposes on the calling thread. element_bytes is 1, 2, 4, 8 or 16. 2 element_bytes per element.
void transpose_tile(const TransposeTile& t, int64_t rows, int64_t cols, int element_bytes);

}  // namespace trireme::cpu
