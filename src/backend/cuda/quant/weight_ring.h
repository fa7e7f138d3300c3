// A thread's share of the weights that a block multiplies on the tensor cores, read ahead of their use.
#pragma once

#include <cstdint>

#include "backend/cuda/dense/mma.h"
#include "backend/cuda/device/step.h"
#include "backend/cuda/dense/words.h"
#include "backend/cuda/quant/row_products.h"

namespace trireme::cuda {

/// 16 rows of each of kSets weights of T, whose sums over k kWarps warps share: warp w takes every kWarps-th
/// run of 128 elements from the w-th on. A thread reads eight neighbours along k of two rows of a weight in a
/// step, kDepth steps ahead of their use.
template <class T, int kSets, int kDepth, int kWarps>
class WeightRing {
 public:
  static constexpr int kStep = 32, kRun = 128, kStepsOfRun = kRun / kStep;

  TRIREME_DEVICE WeightRing(int thread_of_block, int64_t k)
      : k_(static_cast<int>(k)),  // fits: a row of x fits shared memory or a cache
        warp_(thread_of_block / kWarp),
        first_(warp_ * kRun + thread_of_block % 4 * 8),
        row_(thread_of_block % kWarp / 4) {}

  /// Weight `set` begins at its row `row`. Rows behind the last are read as the last one; their sums are not
  /// to be stored.
  TRIREME_DEVICE void set_weight(int set, const RowWeight& of, int64_t row) {
    TRIREME_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t own = row + row_ + half * 8;
      from_[set][half] = static_cast<const T*>(of.w) + (own < of.n ? own : of.n - 1) * k_;
    }
  }

  TRIREME_DEVICE int steps() const {
    const int runs = (k_ + kRun - 1) / kRun;
    return warp_ < runs ? (runs - warp_ + kWarps - 1) / kWarps * kStepsOfRun : 0;
  }
  /// Where the thread's eight elements of a step begin; k or more behind the last.
  TRIREME_DEVICE int offset(int step) const {
    return first_ + step / kStepsOfRun * (kWarps * kRun) + step % kStepsOfRun * kStep;
  }

  /// Asks for the weights of a step; `slot` is its number modulo kDepth.
  TRIREME_DEVICE void read(int slot, int step) {
    const int at = offset(step);
    TRIREME_UNROLL
    for (int s = 0; s < kSets; ++s) {
      TRIREME_UNROLL
      for (int half = 0; half < 2; ++half)
        words_[slot][s][half] = at < k_ ? constant_words(from_[s][half] + at) : Words{};
    }
  }
  TRIREME_DEVICE void fill() {
    TRIREME_UNROLL
    for (int d = 0; d < kDepth; ++d) read(d, d);
  }

  /// Adds the products of a step with the same elements of eight rows of x, of which the thread holds those
  /// of one. The order of terms within a step is the tensor cores'; it is the same for both operands.
  template <class Lane>
  TRIREME_DEVICE void multiply(const Lane& lane, int slot, const Words& x, float (&sum)[kSets][4]) const {
    TRIREME_UNROLL
    for (int s = 0; s < kSets; ++s) {
      const uint32_t *upper = words_[slot][s][0].word, *lower = words_[slot][s][1].word;
      multiply_add<T>(lane, sum[s], {upper[0], lower[0], upper[1], lower[1]}, {x.word[0], x.word[1]});
      multiply_add<T>(lane, sum[s], {upper[2], lower[2], upper[3], lower[3]}, {x.word[2], x.word[3]});
    }
  }

 private:
  int k_, warp_, first_, row_;
  const T* from_[kSets][2];  ///< element 0 of the thread's rows
  Words words_[kDepth][kSets][2];
};

}  // namespace trireme::cuda
