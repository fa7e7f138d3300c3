// Batches of a matrix product as two nested strides.
#include "ops/dense/batch_strides.h"

namespace trireme::ops {
namespace {

bool fits(const std::vector<int64_t>& offsets, int64_t inner, int64_t& outer_stride, int64_t& inner_stride) {
  const int64_t count = static_cast<int64_t>(offsets.size());
  inner_stride = inner > 1 ? offsets[1] - offsets[0] : 0;
  outer_stride = count > inner ? offsets[static_cast<size_t>(inner)] - offsets[0] : 0;
  for (int64_t i = 0; i < count; ++i) {
    if (offsets[static_cast<size_t>(i)] != i / inner * outer_stride + i % inner * inner_stride) return false;
  }
  return true;
}

}  // namespace

std::optional<BatchStrides> batch_strides(const MatmulShape& shape) {
  const int64_t count = shape.batches();
  // The inner extent must divide the batch count; the largest possible one is used.
  for (int64_t inner = count; inner >= 1; --inner) {
    if (count % inner != 0) continue;
    BatchStrides s{.outer = count / inner, .inner = inner};
    if (fits(shape.a_offset, inner, s.a_outer, s.a_inner) &&
        fits(shape.b_offset, inner, s.b_outer, s.b_inner))
      return s;
  }
  return std::nullopt;
}

}  // namespace trireme::ops
