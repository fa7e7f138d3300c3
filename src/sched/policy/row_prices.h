// What a row costs in batches of each size, as measured, and so how many of the waiting rows to run at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "sched/policy/batch_policy.h"

namespace trireme::sched {

/// Learns from the batches that run, by group of shapes: gathering and filling up count as much as computing.
/// Not for several threads at once.
class RowPrices {
 public:
  /// Batches are filled up to one of `row_buckets`; empty: exact.
  RowPrices(std::vector<int64_t> row_buckets, int64_t max_rows);

  /// A batch that was filled up to `padded` rows took `ns` from the queue to its results.
  void observe(uint64_t group, int64_t padded, int64_t ns, int64_t now_ns);
  /// Of `rows` that wait: the fewest whose price is within 3 % of the lowest that can be had with them, so
  /// that nobody waits for rows that make nothing cheaper. A size that has not run three times is tried
  /// where there is hope, one that did not run for five seconds (a dear one: up to a minute) again. With
  /// nothing known: all of them.
  BatchWorth worth(uint64_t group, int64_t rows, int64_t now_ns) const;
  /// The same for a policy that decides at `now_ns`. `ends_waits`: a window ends where waiting gains nothing.
  WorthOf worth_at(int64_t now_ns, bool ends_waits) const;

 private:
  struct Cost {
    std::vector<int64_t> last_ns;  ///< of the last batches, of which the median counts: stalls say nothing
    double median_ns = 0;
    int64_t seen_ns = 0;
    void add(int64_t taken_ns, int64_t now_ns);
    bool is_known() const { return last_ns.size() >= 3; }
  };
  using Sizes = std::map<int64_t, Cost>;

  int64_t size_of(int64_t rows) const;
  int64_t next_above(int64_t size) const;
  int64_t next_below(int64_t size) const;  ///< 0: none
  /// Nanoseconds a row of a full batch of this size; 0: not known.
  static double full_price(const Sizes& sizes, int64_t size);
  int64_t untried(const Sizes& sizes, int64_t rows, double lowest) const;
  int64_t cheapest(const Sizes& sizes, int64_t rows) const;
  struct Choice {
    int64_t rows = 0;
    double lowest = 0;  ///< price of all sizes
  };
  int64_t outdated(const Sizes& sizes, const Choice& choice, int64_t rows, int64_t now_ns) const;
  void forget_oldest();

  const std::vector<int64_t> buckets_;
  const int64_t max_rows_;
  std::map<uint64_t, Sizes> groups_;
};

}  // namespace trireme::sched
