// Predicts how long a batch will take.
#include "sched/policy/batch_cost.h"

#include <algorithm>
#include <cmath>

namespace trireme::sched {
namespace {

/// Clients choose shapes, so the number of remembered ones is bounded.
constexpr size_t kMostCosts = 512;

}  // namespace

void BatchCost::observe(uint64_t group, int64_t rows, int64_t ns) {
  Cost& cost = costs_[{group, rows}];
  const auto value = static_cast<double>(ns);
  const bool is_first = cost.last_use == 0;
  cost.last_use = ++observations_;
  if (is_first) {
    cost.mean_ns = value;
    if (costs_.size() > kMostCosts) forget_oldest();
    return;
  }
  // A new value has a weight of 1/4: the mean follows a change of load within a few batches, but resists an
  // outlier. High outliers are capped near twice the mean, or one stall would cause a second of refusals.
  const double seen = std::min(value, 2 * cost.mean_ns + 1e6);
  cost.spread_ns += (std::abs(seen - cost.mean_ns) - cost.spread_ns) / 8;
  cost.mean_ns += (seen - cost.mean_ns) / 4;
}

void BatchCost::forget_oldest() {
  const auto oldest = std::min_element(costs_.begin(), costs_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  costs_.erase(oldest);
}

int64_t BatchCost::predict(uint64_t group, int64_t rows) const {
  const auto above = costs_.lower_bound({group, rows});
  const bool has_above = above != costs_.end() && above->first.first == group;
  if (has_above && above->first.second == rows) return static_cast<int64_t>(expected(above->second));
  const bool has_below = above != costs_.begin() && std::prev(above)->first.first == group;
  if (!has_below) return has_above ? static_cast<int64_t>(expected(above->second)) : 0;
  const auto below = std::prev(above);
  const double low = expected(below->second);
  const auto low_rows = static_cast<double>(below->first.second);
  if (!has_above) return static_cast<int64_t>(low * static_cast<double>(rows) / std::max(1.0, low_rows));
  const double share =
      (static_cast<double>(rows) - low_rows) / (static_cast<double>(above->first.second) - low_rows);
  return static_cast<int64_t>(low + share * std::max(0.0, expected(above->second) - low));
}

}  // namespace trireme::sched
