// What a token's queries, keys and values go through between products and attention over pages, for kernels
// that share it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/paged.h"

namespace trireme::ops {

/// Which channels of a head rotate.
struct Rotation {
  int64_t channels = 0;  ///< of a head
  int64_t rotated = 0;   ///< the first of them
  bool interleaved = false;
};

/// One head: pairs turn by their angles [rotated / 2], the other channels are copied. y may be x.
template <class T>
void rotate_head(const Rotation& r, const T* x, const T* cosine, const T* sine, T* y) {
  const int64_t half = r.rotated / 2;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t a = r.interleaved ? 2 * i : i, b = r.interleaved ? 2 * i + 1 : i + half;
    const T xa = x[a], xb = x[b];
    y[a] = cosine[i] * xa - sine[i] * xb;
    y[b] = sine[i] * xa + cosine[i] * xb;
  }
  for (int64_t i = r.rotated; i < r.channels; ++i) y[i] = x[i];
}

/// The row of a table of angles for a position: the nearest there is, since kernels do not fail.
inline int64_t angle_row(int64_t position, int64_t rows) {
  return std::clamp<int64_t>(position, 0, rows - 1);
}

/// Where new keys and values go: pages of one type, rows of another.
struct PageWriter {
  PageShape pages;
  tensor::DType row_type = tensor::DType::f32, page_type = tensor::DType::f32;

  int64_t places() const { return pages.pages * pages.page_tokens; }
  /// Bytes that the key or value of a token and head takes in its page.
  int64_t row_bytes() const { return ops::row_bytes(page_type, pages.dim); }
  /// A head's row to place `slot` of its pages: the same bits, widened, rounded to nearest even, or as codes
  /// and their scale.
  void write(const void* row, int64_t slot, int64_t head, void* to) const;
  /// New content of pages: in place as programs have it, else a copy first.
  void keep(const void* from, void* to) const;
};

}  // namespace trireme::ops
