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
  /// A batch of `rows` (padded) of `group` took `ns` and has ended.
  void observe(uint64_t group, int64_t rows, int64_t ns, int64_t now_ns);
  /// Expected time, with the usual spread on top, of a batch of `rows` (padded). A size that never ran is
  /// taken from its nearest neighbours; 0 where nothing is known, so that nothing is refused for want of
  /// knowledge.
  int64_t predict(uint64_t group, int64_t rows) const;
  /// The same from sizes that were seen more than once, the last time not long ago. A first batch may include
  /// compiling its program, and long after a slow one the machine may be quick again.
  int64_t predict_lately(uint64_t group, int64_t rows, int64_t now_ns) const;

 private:
  struct Cost {
    SmoothedTime time;
    uint64_t last_use = 0;  ///< count of observations when it was seen last
    int64_t seen_ns = 0;    ///< the same, in time
    bool is_repeated = false;
  };
  using Key = std::pair<uint64_t, int64_t>;
  static double expected(const Cost& cost) { return cost.time.with_spread_ns(); }
  static bool is_sure(const Cost& cost, int64_t now_ns);
  template <class Counts>
  int64_t estimate(const Key& key, const Counts& counts) const;
  void forget_oldest();

  std::map<Key, Cost> costs_;
  uint64_t observations_ = 0;
};

}  // namespace trireme::sched
