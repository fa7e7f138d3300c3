// Predicts how long a batch will take.
#include "sched/policy/batch_cost.h"

#include <algorithm>
#include <iterator>

namespace trireme::sched {
namespace {

/// Clients choose shapes, so the number of remembered ones is bounded.
constexpr size_t kMostCosts = 512;
/// What is expected decides which requests are refused, so it follows a change within a few batches.
constexpr double kInertia = 4;
/// A time is outdated if it was not seen for a second and ten times itself: looking again, though the batch
/// may be as slow as ever, costs a tenth of the time at most.
constexpr double kUnseenNs = 1e9, kUnseenTimes = 10;
/// If an unsure time was at least twice as long as the next one, the next one counts alone.
constexpr double kMuchLess = 0.5;

}  // namespace

bool BatchCost::is_sure(const Cost& cost, int64_t now_ns) {
  return cost.is_repeated &&
         static_cast<double>(now_ns - cost.seen_ns) <= kUnseenNs + kUnseenTimes * expected(cost);
}

void BatchCost::observe(uint64_t group, int64_t rows, int64_t ns, int64_t now_ns) {
  Cost& cost = costs_[{group, rows}];
  const bool was_sure = is_sure(cost, now_ns);
  cost.is_repeated = cost.time.is_known();
  if (!was_sure && static_cast<double>(ns) < kMuchLess * cost.time.mean_ns) cost.time = {};
  cost.time.add(ns, kInertia);
  cost.last_use = ++observations_;
  cost.seen_ns = now_ns;
  if (costs_.size() > kMostCosts) forget_oldest();
}

void BatchCost::forget_oldest() {
  const auto oldest = std::min_element(costs_.begin(), costs_.end(), [](const auto& a, const auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  costs_.erase(oldest);
}

/// From those sizes that count: the wanted one, or its nearest neighbours.
template <class Counts>
int64_t BatchCost::estimate(const Key& key, const Counts& counts) const {
  const auto is_of_group = [&](auto at) { return at != costs_.end() && at->first.first == key.first; };
  auto above = costs_.lower_bound(key), below = above;
  while (is_of_group(above) && !counts(above->second)) ++above;
  const bool has_above = is_of_group(above);
  if (has_above && above->first == key) return static_cast<int64_t>(expected(above->second));
  bool has_below = false;
  while (!has_below && below != costs_.begin() && is_of_group(std::prev(below)))
    has_below = counts((--below)->second);
  if (!has_below) return has_above ? static_cast<int64_t>(expected(above->second)) : 0;
  const double low = expected(below->second);
  const auto rows = static_cast<double>(key.second), low_rows = static_cast<double>(below->first.second);
  if (!has_above) return static_cast<int64_t>(low * rows / std::max(1.0, low_rows));
  const double share = (rows - low_rows) / (static_cast<double>(above->first.second) - low_rows);
  return static_cast<int64_t>(low + share * std::max(0.0, expected(above->second) - low));
}

int64_t BatchCost::predict(uint64_t group, int64_t rows) const {
  return estimate({group, rows}, [](const Cost&) { return true; });
}

int64_t BatchCost::predict_lately(uint64_t group, int64_t rows, int64_t now_ns) const {
  return estimate({group, rows}, [&](const Cost& cost) { return is_sure(cost, now_ns); });
}

}  // namespace trireme::sched
