// Watches for ranks that hold the others up: their own work takes longer than that of their peers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/ranks/ranks.h"

namespace trireme::train {

struct SlowRank {
  int rank = 0;
  double busy_ms = 0;    ///< of a step, mean
  double median_ms = 0;  ///< of the ranks that do the same work
};

/// Ranks of one pipeline stage do the same work. A step's own work is its time without what the rank stood
/// still for others. Collective every `window` steps; all ranks get the same answer.
class SlowRanks {
 public:
  static constexpr int64_t kWindow = 50;
  static constexpr double kTolerated = 1.2;  // times the median

  explicit SlowRanks(const Ranks& ranks) : ranks_(ranks) {}
  /// Ranks that were too slow in the window that ends with this step; empty for all other steps.
  std::vector<SlowRank> observe(double busy_ms);

 private:
  const Ranks& ranks_;
  double sum_ms_ = 0;
  int64_t steps_ = 0;
};

/// The same from the figures: mean work by rank, and the group of ranks each is compared with.
std::vector<SlowRank> slow_ranks(const std::vector<double>& busy_ms, const std::vector<int>& group_of);

}  // namespace trireme::train
