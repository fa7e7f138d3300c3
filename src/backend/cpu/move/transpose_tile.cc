// Transposes n x n blocks of 16-byte vectors in log2(n) rounds of interleaving; blocks are visited a cache
// line at a time.
#include "backend/cpu/move/transpose_tile.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/cpu/tiles/dense_kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace trireme::cpu {
namespace {

// A vector of 16 bytes, which the compiler maps to the baseline vector registers of any machine.
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

// A TransposeTile with its element type.
template <class T>
struct Part {
  const T* x;
  int64_t x_stride;
  T* y;
  int64_t y_stride;

  Part at(int64_t r, int64_t c) const {
    return {x + r * x_stride + c, x_stride, y + c * y_stride + r, y_stride};
  }
};

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

// Writes one cache line to y; `stream` bypasses the cache (y is then 64-byte aligned).
inline void put_line(const void* line, void* y, bool stream) {
#if defined(__SSE2__)
  if (stream) {
    const __m128i* from = static_cast<const __m128i*>(line);
    __m128i* to = static_cast<__m128i*>(y);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(to + i, _mm_load_si128(from + i));
    return;
  }
#endif
  (void)stream;
  std::memcpy(y, line, 64);
}

// Transposes a line of rows by a line of columns. Each cache line of x and of y is touched once, because rows
// that are a power of two apart share few cache sets and would be evicted before a second visit.
template <class T>
void line_block(const T* x, int64_t x_stride, T* y, int64_t y_stride, bool stream) {
  constexpr int n = 16 / sizeof(T), line = 64 / sizeof(T);
  alignas(64) T turned[line * line];
  for (int r = 0; r < line; r += n) {
    // Prefetches two blocks ahead: the hardware prefetcher tracks fewer rows than a block has.
    if (stream) {
      for (int i = 0; i < n; ++i) __builtin_prefetch(x + (r + i) * x_stride + 2 * line);
    }
    for (int c = 0; c < line; c += n) block(x + r * x_stride + c, x_stride, turned + c * line + r, line);
  }
  for (int c = 0; c < line; ++c) put_line(turned + c * line, y + c * y_stride, stream);
}

template <class T>
void edge(const Part<T>& p, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) p.y[c * p.y_stride + r] = p.x[r * p.x_stride + c];
  }
}

// Transposes what the line blocks leave: n x n blocks, then single elements.
template <class T>
void small(const Part<T>& p, int64_t rows, int64_t cols) {
  constexpr int64_t n = 16 / static_cast<int64_t>(sizeof(T));
  const int64_t whole_rows = rows / n * n, whole_cols = cols / n * n;
  for (int64_t c = 0; c < whole_cols; c += n) {
    for (int64_t r = 0; r < whole_rows; r += n) {
      const Part<T> b = p.at(r, c);
      block(b.x, b.x_stride, b.y, b.y_stride);
    }
  }
  edge(p.at(0, whole_cols), whole_rows, cols - whole_cols);
  edge(p.at(whole_rows, 0), rows - whole_rows, cols);
}

/// Transposes whole vectors of rows with the widest registers, for elements of four bytes. It visits a line
/// of x several times, so the lines of the rows must not compete for a few sets of the L1 cache. Returns the
/// number of rows done.
int64_t wide_rows(const Part<uint32_t>& p, int64_t rows, int64_t cols) {
  constexpr int64_t kWorstStride = 512;  // in elements: half a page
  if (p.x_stride % kWorstStride == 0) return 0;
  const DenseKernels& kernels = dense_kernels(best_isa());
  const float* lines[kRowSlots];
  int64_t done = 0;
  for (; done + kernels.width <= rows; done += kernels.width) {
    for (int i = 0; i < kernels.width; ++i)
      lines[i] = reinterpret_cast<const float*>(p.x + (done + i) * p.x_stride);
    kernels.transpose(lines, cols, reinterpret_cast<float*>(p.y + done), p.y_stride);
  }
  return done;
}

template <class T>
void transpose(TransposeTile t, int64_t rows, int64_t cols) {
  if constexpr (sizeof(T) == 4) {
    const Part<T> part = {static_cast<const T*>(t.x), t.x_stride, static_cast<T*>(t.y), t.y_stride};
    const int64_t done = t.stream ? 0 : wide_rows(part, rows, cols);
    const Part<T> rest = part.at(done, 0);
    t.x = rest.x, t.y = rest.y, rows -= done;
  }
  const T* x = static_cast<const T*>(t.x);
  T* y = static_cast<T*>(t.y);
  constexpr int64_t kSize = sizeof(T), kLine = 64 / kSize;
  // `head` is the number of rows before the first whole line of y, if all lines of y have the same alignment.
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % 64);
  const bool alike = t.y_stride * kSize % 64 == 0 && past % kSize == 0;
  const int64_t head = alike ? std::min(rows, (64 - past) % 64 / kSize) : 0;
  const int64_t body = (rows - head) / kLine * kLine, whole_cols = cols / kLine * kLine;
  const Part<T> all = {x, t.x_stride, y, t.y_stride};
  for (int64_t r = 0; r < body; r += kLine) {
    for (int64_t c = 0; c < whole_cols; c += kLine) {
      const Part<T> b = all.at(head + r, c);
      line_block(b.x, b.x_stride, b.y, b.y_stride, t.stream && alike);
    }
  }
  small(all, head, cols);
  small(all.at(head, whole_cols), body, cols - whole_cols);
  small(all.at(head + body, 0), rows - head - body, cols);
#if defined(__SSE2__)
  if (t.stream) _mm_sfence();
#endif
}

struct WideElement {
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
      return edge<WideElement>(
          {static_cast<const WideElement*>(t.x), t.x_stride, static_cast<WideElement*>(t.y), t.y_stride},
          rows, cols);
  }
}

}  // namespace trireme::cpu
