// How long a batch will take, learnt from those that ran: by group of shapes and padded rows.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "sched/policy/smoothed_time.h"

namespace trireme::sched {

/// Smoothed times of batches. Not for several threads at once.
class BatchCost {
 public:
  /// A batch of `rows` (padded) of `group` took `ns`.
  void observe(uint64_t group, int64_t rows, int64_t ns);
  /// Expected time, with the usual spread on top, of a batch of `rows` (padded). A size that never ran is
  /// taken from its nearest neighbours; 0 where nothing is known, so that nothing is refused for want of
  /// knowledge.
  int64_t predict(uint64_t group, int64_t rows) const;

 private:
  struct Cost {
    SmoothedTime time;
    uint64_t last_use = 0;  ///< count of observations when it was seen last
  };
  using Key = std::pair<uint64_t, int64_t>;
  static double expected(const Cost& cost) { return cost.time.with_spread_ns(); }
  void forget_oldest();

  std::map<Key, Cost> costs_;
  uint64_t observations_ = 0;
};

}  // namespace trireme::sched
