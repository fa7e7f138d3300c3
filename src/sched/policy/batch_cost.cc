// Predicts how long a batch will take.
#include "sched/policy/batch_cost.h"

#include <algorithm>

namespace trireme::sched {
namespace {

/// Clients choose shapes, so the number of remembered ones is bounded.
constexpr size_t kMostCosts = 512;
/// What is expected decides which requests are refused, so it follows a change within a few batches.
constexpr double kInertia = 4;

}  // namespace

void BatchCost::observe(uint64_t group, int64_t rows, int64_t ns) {
  Cost& cost = costs_[{group, rows}];
  cost.time.add(ns, kInertia);
  cost.last_use = ++observations_;
  if (costs_.size() > kMostCosts) forget_oldest();
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
