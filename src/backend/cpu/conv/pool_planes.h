// Window pooling over planes, one result row after the other: source rows are joined, then columns of the
// joint row.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace trireme::cpu {

enum class PoolFold : uint8_t {
  max,      // NaN wins; f32, u8, i8
  average,  // f32, as are all below
  l1,       // sum |x|
  l2,       // sqrt(sum x^2)
};

/// One result row. Rows are joined in their order, then columns in theirs; sums in f32.
struct PoolRow {
  PoolFold fold = PoolFold::max;
  tensor::DType dtype = tensor::DType::f32;
  const void* const* rows = nullptr;  // the source rows inside the image, of `in` elements
  int64_t row_count = 0, in = 0;
  int64_t pad = 0, width = 0;  // elements before the row, and in all of it, in `line`
  int64_t kernel = 1, stride = 1, dilation = 1, out = 0;
  const float* count = nullptr;  // average: [out], what sums are divided by
  void* line = nullptr;          // scratch of `width` elements: (out - 1) stride + (kernel - 1) dilation + 1
  void* y = nullptr;             // [out]
};

/// Reads every source row once and writes y once.
void pool_row(const PoolRow& args);

/// Values that meet the largest so far of as many windows: of window i, v[i] at place first + i step.
struct PlacedMaxima {
  const float* v = nullptr;
  int64_t n = 0;
  int32_t first = 0, step = 1;
  float* best = nullptr;
  int32_t* where = nullptr;  ///< of the largest; negative: there is none yet
};
/// The first of equal values stays; NaN is larger than all, the last one counts.
void place_maxima(const PlacedMaxima& args);

}  // namespace trireme::cpu
