// Reading indices out of operands with their range checks: negative ones count from the end.
#pragma once

#include <array>

#include "ir/kernel.h"
#include "ops/elementwise/strided_loop.h"

namespace trireme::ops {

/// Reads an operand of i32 or i64 indices.
class IndexReader {
 public:
  explicit IndexReader(tensor::DType dtype) : is_wide_(dtype == tensor::DType::i64) {}

  /// Index `i` of `indices` among `extent` rows of which only `rows` from `first` on are at hand: the row at
  /// hand, or -1 where it is another, or after reporting an index out of range.
  struct Rows {
    int64_t extent, first, rows;
  };
  int64_t at_hand(const void* indices, int64_t i, const Rows& all, ir::RunStatus* status) const {
    const int64_t at = checked(indices, i, all.extent, status);
    return at >= all.first && at < all.first + all.rows ? at - all.first : -1;
  }

  /// Index `i` of `indices` in [0, extent), or -1 after reporting it.
  int64_t checked(const void* indices, int64_t i, int64_t extent, ir::RunStatus* status) const {
    const int64_t given =
        is_wide_ ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
    const int64_t at = given < 0 ? given + extent : given;
    if (at >= 0 && at < extent) return at;
    if (status != nullptr) status->fail("an index is out of range", given);
    return -1;
  }

 private:
  bool is_wide_;
};

/// Turns an index tuple into the offset of a slice of x, dimensions [first, first + depth) being indexed.
class TupleReader {
 public:
  TupleReader(const tensor::Dims& x, size_t first, size_t depth) : depth_(depth) {
    if (depth > StridedLoop::kMaxRank)
      base::fail_unsupported("index tuples of ", depth, " entries; the most are ", StridedLoop::kMaxRank);
    const std::vector<int64_t> steps = dense_steps(x);
    for (size_t k = 0; k < depth; ++k) {
      extent_[k] = x[first + k];
      step_[k] = steps[first + k];
    }
    for (size_t d = first + depth; d < x.size(); ++d) slice_ *= x[d];
  }
  /// Elements of one slice.
  int64_t slice() const { return slice_; }
  /// Offset in elements, or -1 after reporting an index out of range.
  int64_t offset(const int64_t* tuple, ir::RunStatus* status) const {
    int64_t offset = 0;
    for (size_t k = 0; k < depth_; ++k) {
      const int64_t at = tuple[k] < 0 ? tuple[k] + extent_[k] : tuple[k];
      if (at < 0 || at >= extent_[k]) {
        if (status != nullptr) status->fail("an index is out of range", tuple[k]);
        return -1;
      }
      offset += at * step_[k];
    }
    return offset;
  }

 private:
  size_t depth_;
  int64_t slice_ = 1;
  std::array<int64_t, StridedLoop::kMaxRank> extent_{}, step_{};
};

}  // namespace trireme::ops
