// log2(n) rounds of interleaving transpose an n x n block of 16-byte vectors; blocks are walked a cache line
// at a time.
#include "backend/cpu/transpose_tile.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace trireme::cpu {
namespace {

// 16 bytes of lanes; the compiler maps it to the baseline vector registers of any machine.
template <class T>
struct Vector {
  typedef T type __attribute__((vector_size(16)));
};

template <class T>
using V = typename Vector<T>::type;

inline V<uint8_t> low(V<uint8_t> a, V<uint8_t> b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline V<uint8_t> high(V<uint8_t> a, V<uint8_t> b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
inline V<uint16_t> low(V<uint16_t> a, V<uint16_t> b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
inline V<uint16_t> high(V<uint16_t> a, V<uint16_t> b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
inline V<uint32_t> low(V<uint32_t> a, V<uint32_t> b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline V<uint32_t> high(V<uint32_t> a, V<uint32_t> b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
inline V<uint64_t> low(V<uint64_t> a, V<uint64_t> b) { return __builtin_shufflevector(a, b, 0, 2); }
inline V<uint64_t> high(V<uint64_t> a, V<uint64_t> b) { return __builtin_shufflevector(a, b, 1, 3); }

// One n x n block, n = 16 / sizeof(T). Each round interleaves vector i with vector i + n/2.
template <class T>
inline void block(const T* x, int64_t x_stride, T* y, int64_t y_stride) {
  constexpr int n = 16 / sizeof(T);
  V<T> a[n], b[n];
  for (int i = 0; i < n; ++i) std::memcpy(&a[i], x + i * x_stride, 16);
  for (int round = 1; round < n; round *= 2) {
    for (int i = 0; i < n / 2; ++i) {
      b[2 * i] = low(a[i], a[i + n / 2]);
      b[2 * i + 1] = high(a[i], a[i + n / 2]);
    }
    for (int i = 0; i < n; ++i) a[i] = b[i];
  }
  for (int i = 0; i < n; ++i) std::memcpy(y + i * y_stride, &a[i], 16);
}

template <class T>
void edge(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) y[c * y_stride + r] = x[r * x_stride + c];
  }
}

template <class T>
void transpose(const TransposeTile& t, int64_t rows, int64_t cols) {
  const T* x = static_cast<const T*>(t.x);
  T* y = static_cast<T*>(t.y);
  constexpr int64_t n = 16 / static_cast<int64_t>(sizeof(T));
  // A line of rows by a line of columns: each cache line of y is filled while it is in L1.
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t whole_rows = rows / n * n, whole_cols = cols / n * n;
  for (int64_t r0 = 0; r0 < whole_rows; r0 += kLine) {
    const int64_t r1 = std::min(whole_rows, r0 + kLine);
    for (int64_t c = 0; c < whole_cols; c += n) {
      for (int64_t r = r0; r < r1; r += n) {
        block(x + r * t.x_stride + c, t.x_stride, y + c * t.y_stride + r, t.y_stride);
      }
    }
  }
  edge(x + whole_cols, t.x_stride, y + whole_cols * t.y_stride, t.y_stride, whole_rows, cols - whole_cols);
  edge(x + whole_rows * t.x_stride, t.x_stride, y + whole_rows, t.y_stride, rows - whole_rows, cols);
}

struct Wide {
  uint64_t half[2];
};

}  // namespace

void transpose_tile(const TransposeTile& t, int64_t rows, int64_t cols, int element_bytes) {
  switch (element_bytes) {
    case 1: return transpose<uint8_t>(t, rows, cols);
    case 2: return transpose<uint16_t>(t, rows, cols);
    case 4: return transpose<uint32_t>(t, rows, cols);
    case 8: return transpose<uint64_t>(t, rows, cols);
    default:
      return edge(static_cast<const Wide*>(t.x), t.x_stride, static_cast<Wide*>(t.y), t.y_stride, rows, cols);
  }
}

}  // namespace trireme::cpu
