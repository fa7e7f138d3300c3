// A high-dynamic-range histogram of times: log-linear buckets, three significant digits from 1 ns to 292
// years.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace trireme::base {

/// Counts non-negative integers (nanoseconds). Values below 1024 are kept exactly; above, a bucket is at most
/// 1/512 of its value wide. Memory grows with the largest value: 4 KiB a power of two, 100 KiB at ten
/// seconds. Not thread-safe: one per thread, then merge.
class Histogram {
 public:
  /// Counts `value` `times` times; negative values count as 0.
  void record(int64_t value, int64_t times = 1);
  void merge(const Histogram& other);
  void clear();

  int64_t count() const { return count_; }
  int64_t min() const { return count_ == 0 ? 0 : min_; }  // exact
  int64_t max() const { return max_; }                    // exact
  double mean() const {
    return count_ == 0 ? 0 : sum_ / static_cast<double>(count_);
  }  // exact but for rounding
  double sum() const { return sum_; }
  /// The smallest recorded value v such that at least a fraction q of all values are <= v, to the width of
  /// its bucket (reported as the bucket's top, never above max). 0 if empty.
  int64_t quantile(double q) const;
  /// How many values are <= `value`, to the width of its bucket.
  int64_t count_at_most(int64_t value) const;

  /// Calls visit(low, high, count) for each bucket that is not empty, in order; it holds values in [low,
  /// high].
  template <class Visit>
  void for_each_bucket(const Visit& visit) const {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) visit(low(i), high(i), counts_[i]);
    }
  }

 private:
  // A value with at most 10 bits is its own bucket. A longer one keeps its 10 leading bits: with `shift` bits
  // dropped those are in [512, 1024), and bucket shift*512 + leading continues the numbering without a gap.
  static constexpr int kBits = 10;
  static size_t bucket(int64_t value) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - kBits);
    return (static_cast<size_t>(shift) << (kBits - 1)) + static_cast<size_t>(value >> shift);
  }
  static int64_t low(size_t bucket) {
    const size_t shift = bucket < size_t{1} << kBits ? 0 : (bucket >> (kBits - 1)) - 1;
    return static_cast<int64_t>((bucket - (shift << (kBits - 1))) << shift);
  }
  static int64_t high(size_t bucket) {
    const size_t shift = bucket < size_t{1} << kBits ? 0 : (bucket >> (kBits - 1)) - 1;
    // Unsigned: the last bucket ends at 2^63 - 1.
    return static_cast<int64_t>(((bucket - (shift << (kBits - 1)) + 1) << shift) - 1);
  }

  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  int64_t min_ = INT64_MAX;
  int64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace trireme::base
