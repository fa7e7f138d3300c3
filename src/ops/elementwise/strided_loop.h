// A nest of loops over a dense result whose operands may be broadcast or permuted; the driver of most
// reference kernels.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/threads/thread_pool.h"
#include "tensor/tensor.h"

namespace trireme::ops {

/// Row-major steps of `dims`, in elements.
std::vector<int64_t> dense_steps(const tensor::Dims& dims);

/// Steps that walk an operand of `dims` along the dimensions of `out` (NumPy rules): 0 where it is repeated.
std::vector<int64_t> broadcast_steps(const tensor::Dims& dims, const tensor::Dims& out);

/// Loops over the elements of a dense row-major result; operand k moves by steps[k][d] per step of dimension
/// d. Built once in prepare; adjacent dimensions that all operands walk evenly are merged.
class StridedLoop {
 public:
  static constexpr size_t kMaxRank = 16;  // after merging
  static constexpr size_t kMaxOperands = 64;
  static constexpr int64_t kBlock = 16384;  // elements of one piece of work: 64 KiB of floats

  StridedLoop(const tensor::Dims& extent, const std::vector<std::vector<int64_t>>& steps);
  /// All operands broadcast to `out`.
  static StridedLoop broadcast(const tensor::Dims& out, std::span<const tensor::Dims> in);

  int64_t inner() const { return inner_; }
  /// Step of each operand inside a row.
  const int64_t* inner_steps() const { return inner_steps_.data(); }
  size_t operands() const { return operands_; }
  /// The extents around the innermost one, outermost first, and the operands' steps along each.
  const tensor::Dims& outer() const { return outer_; }
  const std::vector<int64_t>& outer_steps() const { return outer_steps_; }

  /// Calls row(offsets, out_offset, n) for pieces of rows, in parallel; offsets[k] is operand k's first
  /// element. The pieces do not depend on the team's size.
  template <class Row>
  void run(base::ThreadPool& pool, const Row& row) const {
    if (count_ == 0) return;
    const int64_t blocks = std::max<int64_t>(1, (inner_ + kBlock - 1) / kBlock);
    const int64_t grain = std::max<int64_t>(1, kBlock / std::min(inner_, kBlock));
    pool.for_range(rows_ * blocks, grain, [&](int64_t begin, int64_t end) {
      Cursor at(*this, begin / blocks);
      std::array<int64_t, kMaxOperands> offsets;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * kBlock;
        for (size_t k = 0; k < operands_; ++k) offsets[k] = at.offset[k] + first * inner_steps_[k];
        row(static_cast<const int64_t*>(offsets.data()), at.row * inner_ + first,
            std::min(kBlock, inner_ - first));
        if (task % blocks == blocks - 1) at.next(*this);
      }
    });
  }

 private:
  /// Where the outer loops stand.
  struct Cursor {
    Cursor(const StridedLoop& loop, int64_t first_row);
    void next(const StridedLoop& loop);
    int64_t row;
    std::array<int64_t, kMaxRank> index;
    std::array<int64_t, kMaxOperands> offset;
  };

  size_t operands_ = 0;
  int64_t count_ = 1;  // elements of the result
  int64_t rows_ = 1;
  int64_t inner_ = 1;                 // extent of the innermost dimension
  tensor::Dims outer_;                // the other extents, outermost first
  std::vector<int64_t> outer_steps_;  // [outer dims, operands]
  std::vector<int64_t> inner_steps_;  // [operands]
};

}  // namespace trireme::ops
