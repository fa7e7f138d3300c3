// Finds the window, largest batch and number of instances for a latency goal.
#include "sched/policy/batch_tuner.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sched/policy/batch_policy.h"

namespace trireme::sched {
namespace {

/// Settings are judged by a trace of at most this many arrivals; old ones count only if few are newer.
constexpr size_t kMostArrivals = 1024, kFewArrivals = 48;
constexpr int64_t kRecentNs = 5'000'000'000;
constexpr int64_t kPlanNs = 1'000'000'000;
constexpr int64_t kForgetNs = 300'000'000'000;
/// Settings last for seconds, so times are averaged over more batches than those that admit requests.
constexpr double kInertiaOfPlans = 8;
/// Prices within kAlike count as equal; a change needs a price or latency that is lower by these factors.
constexpr double kAlike = 1.02, kCheaper = 0.95, kFaster = 0.7;

/// The q-th quantile; reorders the list.
double quantile(std::vector<int64_t>& list, double q) {
  if (list.empty()) return 0;
  const auto at = static_cast<size_t>(q * static_cast<double>(list.size() - 1));
  std::nth_element(list.begin(), list.begin() + static_cast<ptrdiff_t>(at), list.end());
  return static_cast<double>(list[at]);
}

}  // namespace

void ConcurrentCost::observe(int busy, int64_t rows, int64_t ns, int64_t now_ns) {
  Cost& cost = costs_[busy][rows];
  cost.time.add(ns, kInertiaOfPlans);
  cost.seen_ns = now_ns;
}

/// The mean ratio over the sizes that both have; 1 if there are none.
double ConcurrentCost::scale(const Sizes& wanted, const Sizes& known) const {
  double sum = 0;
  int count = 0;
  for (const auto& [rows, cost] : wanted) {
    const auto at = known.find(rows);
    if (at == known.end()) continue;
    sum += cost.time.mean_ns / at->second.time.mean_ns;
    ++count;
  }
  return count == 0 ? 1 : sum / count;
}

double ConcurrentCost::lookup(int busy, int64_t rows, bool with_spread) const {
  const auto own = costs_.find(busy);
  static const Sizes kNone;
  const Sizes& wanted = own == costs_.end() ? kNone : own->second;
  // All sizes as seen by this number of instances: its own, and scaled ones of others where it has none.
  std::map<int64_t, double> sizes;
  std::vector<std::pair<int, const Sizes*>> by_distance;
  for (const auto& [k, list] : costs_) by_distance.emplace_back(std::abs(k - busy), &list);
  std::sort(by_distance.begin(), by_distance.end());
  for (const auto& [distance, list] : by_distance) {
    const double factor = distance == 0 ? 1 : scale(wanted, *list);
    for (const auto& [r, cost] : *list)
      sizes.try_emplace(r, factor * (with_spread ? cost.time.with_spread_ns() : cost.time.mean_ns));
  }
  if (sizes.empty()) return 0;
  const auto above = sizes.lower_bound(rows);
  if (above != sizes.end() && above->first == rows) return above->second;
  if (above == sizes.begin()) return above->second;  // no smaller size is known
  const auto below = std::prev(above);
  const auto low_rows = static_cast<double>(below->first), wanted_rows = static_cast<double>(rows);
  if (above != sizes.end()) {
    const double share = (wanted_rows - low_rows) / (static_cast<double>(above->first) - low_rows);
    return below->second + share * (above->second - below->second);
  }
  if (below == sizes.begin()) return below->second * wanted_rows / low_rows;
  const auto before = std::prev(below);  // beyond all known sizes: extrapolates the last two
  const double slope =
      std::max(0.0, below->second - before->second) / (low_rows - static_cast<double>(before->first));
  return below->second + slope * (wanted_rows - low_rows);
}

double ConcurrentCost::predict(int busy, int64_t rows) const { return lookup(busy, rows, true); }
double ConcurrentCost::mean(int busy, int64_t rows) const { return lookup(busy, rows, false); }

void ConcurrentCost::forget_before(int64_t ns) {
  for (auto& [busy, sizes] : costs_) {
    const int own = busy;
    std::erase_if(sizes, [&](const auto& entry) {
      if (entry.second.seen_ns >= ns) return false;
      return std::any_of(costs_.begin(), costs_.end(), [&](const auto& other) {
        const auto at = other.second.find(entry.first);
        return other.first != own && at != other.second.end() && at->second.seen_ns >= ns;
      });
    });
  }
}

Outlook replay(const BatchSetting& setting, const std::vector<Arrival>& arrivals, const ConcurrentCost& cost,
               const std::vector<int64_t>& row_buckets) {
  std::vector<int64_t> latencies, free_ns(static_cast<size_t>(setting.instances), arrivals[0].at_ns);
  // Cached for each size, because lookups in the table are slow.
  std::map<std::pair<int, int64_t>, std::pair<double, double>> known;
  const auto time_of = [&](int busy, int64_t rows) {
    const auto [at, is_new] = known.try_emplace({busy, rows});
    if (is_new) at->second = {cost.predict(busy, rows), cost.mean(busy, rows)};
    return at->second;
  };
  double work_ns = 0;
  int64_t all_rows = 0, last_ns = arrivals[0].at_ns + 1;
  for (size_t head = 0; head < arrivals.size();) {
    int64_t& free = *std::min_element(free_ns.begin(), free_ns.end());
    const int64_t ready_ns = std::max(free, arrivals[head].at_ns);
    int64_t go_ns = std::max(ready_ns, arrivals[head].at_ns + setting.window_ns), rows = 0;
    size_t next = head;
    for (; next < arrivals.size() && arrivals[next].at_ns <= go_ns; ++next) {
      if (rows > 0 && rows + arrivals[next].rows > setting.max_rows) {
        go_ns = std::max(ready_ns, arrivals[next].at_ns);  // the first that does not fit ends the window
        break;
      }
      rows += arrivals[next].rows;
      if (rows >= setting.max_rows) {
        go_ns = std::max(ready_ns, arrivals[next++].at_ns);
        break;
      }
    }
    const auto busy =
        1 + std::count_if(free_ns.begin(), free_ns.end(), [go_ns](int64_t f) { return f > go_ns; });
    const auto [took_ns, mean_ns] = time_of(static_cast<int>(busy), bucket_of(row_buckets, rows));
    free = go_ns + static_cast<int64_t>(took_ns);
    for (; head < next; ++head) latencies.push_back(free - arrivals[head].at_ns);
    work_ns += mean_ns;
    all_rows += rows;
    last_ns = std::max(last_ns, free);
  }
  const auto rows = static_cast<double>(all_rows);
  return {.p99_ns = quantile(latencies, 0.99),
          .row_ns = work_ns / rows,
          .rows_per_s = rows * 1e9 / static_cast<double>(last_ns - arrivals[0].at_ns)};
}

/// Compares each of the most recent stretches with the time before it. If the count differs by four standard
/// deviations, which allow for random and bursty arrivals, the load has changed.
RecentLoad recent_load(std::vector<Arrival> arrivals, int64_t now_ns) {
  constexpr double kDeviations = 4;
  constexpr std::array<int64_t, 5> kStretchesNs{2'000'000'000, 1'400'000'000, 1'000'000'000, 500'000'000,
                                                250'000'000};
  RecentLoad load{.arrivals = std::move(arrivals)};
  if (load.arrivals.size() < kFewArrivals) return load;
  const int64_t first_ns = load.arrivals.front().at_ns;
  double most = kDeviations, slower = 1;  // slower: old rate over new
  size_t cut = 0;
  for (const int64_t stretch_ns : kStretchesNs) {
    const int64_t at_ns = now_ns - stretch_ns;
    const auto at = std::lower_bound(load.arrivals.begin(), load.arrivals.end(), at_ns,
                                     [](const Arrival& a, int64_t ns) { return a.at_ns < ns; });
    const auto before = static_cast<double>(at - load.arrivals.begin());
    const auto after = static_cast<double>(load.arrivals.end() - at);
    if (at_ns - first_ns < stretch_ns || after == 0) continue;
    const double expected = before * static_cast<double>(stretch_ns) / static_cast<double>(at_ns - first_ns);
    const double deviations = std::abs(after - expected) / std::sqrt(expected + after + 1);
    if (deviations <= most) continue;
    most = deviations;
    cut = static_cast<size_t>(before);
    load.changed_ns = at_ns;
    slower = expected / after;
  }
  if (load.changed_ns == 0) return load;
  const size_t kept = std::min(cut, load.arrivals.size() - kFewArrivals);
  for (size_t i = kept; i < cut; ++i) {
    int64_t& at_ns = load.arrivals[i].at_ns;
    at_ns = load.changed_ns - static_cast<int64_t>(static_cast<double>(load.changed_ns - at_ns) * slower);
  }
  load.arrivals.erase(load.arrivals.begin(), load.arrivals.begin() + static_cast<ptrdiff_t>(kept));
  return load;
}

BatchTuner::BatchTuner(TunerOptions options) : options_(std::move(options)) {
  // Until costs are known: no window, and everything that is allowed.
  setting_ = {.window_ns = 0, .max_rows = options_.max_rows, .instances = options_.instances};
}

void BatchTuner::arrived(const Arrival& arrival) {
  arrivals_.push_back(arrival);
  if (arrivals_.size() > kMostArrivals) arrivals_.pop_front();
}

void BatchTuner::ran(int busy, int64_t padded_rows, int64_t took_ns, int64_t now_ns) {
  cost_.observe(busy, padded_rows, took_ns, now_ns);
}

void BatchTuner::answered(int64_t latency_ns) {
  if (latencies_.size() < 4 * kMostArrivals) latencies_.push_back(latency_ns);
}

std::vector<Arrival> BatchTuner::recent(int64_t now_ns) const {
  std::vector<Arrival> list(arrivals_.begin(), arrivals_.end());
  size_t old = 0;
  while (list.size() - old > kFewArrivals && list[old].at_ns < now_ns - kRecentNs) ++old;
  list.erase(list.begin(), list.begin() + static_cast<ptrdiff_t>(old));
  return list;
}

bool BatchTuner::wants_plan(int64_t now_ns) const {
  if (now_ns - planned_ns_ >= kPlanNs) return true;
  return now_ns - planned_ns_ >= kPlanNs / 4 && recent_load(recent(now_ns), now_ns).changed_ns > 0;
}

std::vector<BatchSetting> BatchTuner::candidates() const {
  std::vector<int64_t> sizes;
  for (int64_t b : options_.row_buckets) {
    if (b < options_.max_rows) sizes.push_back(b);
  }
  if (options_.row_buckets.empty()) {
    for (int64_t b = 1; b < options_.max_rows; b *= 2) sizes.push_back(b);
  }
  sizes.push_back(options_.max_rows);
  std::vector<int> instances;
  for (int k = 1; k < options_.instances; k *= 2) instances.push_back(k);
  instances.push_back(options_.instances);
  std::vector<BatchSetting> list;
  for (double share : {0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}) {
    for (int64_t rows : sizes) {
      for (int k : instances) {
        list.push_back({.window_ns = static_cast<int64_t>(share * static_cast<double>(options_.p99_ns)),
                        .max_rows = rows,
                        .instances = k});
      }
    }
  }
  return list;
}

std::optional<BatchTuner::Choice> BatchTuner::plan(int64_t now_ns) const {
  const RecentLoad load = recent_load(recent(now_ns), now_ns);
  const std::vector<Arrival>& arrivals = load.arrivals;
  if (arrivals.size() < kFewArrivals || cost_.predict(1, 1) == 0) return std::nullopt;
  std::vector<Choice> choices;
  bool any_meets = false;
  const auto add = [&](const BatchSetting& setting) {
    Choice choice{.setting = setting, .outlook = replay(setting, arrivals, cost_, options_.row_buckets)};
    choice.meets_goal = choice.outlook.p99_ns <= aim_ns();
    any_meets = any_meets || choice.meets_goal;
    choices.push_back(choice);
  };
  add(setting_);
  for (const BatchSetting& setting : candidates()) add(setting);
  const Choice current = choices[0];
  if (any_meets) std::erase_if(choices, [](const Choice& c) { return !c.meets_goal; });
  // The cost of a row; if the goal cannot be met, the mean time between finished rows.
  const auto price = [any_meets](const Choice& c) {
    return any_meets ? c.outlook.row_ns : 1e9 / c.outlook.rows_per_s;
  };
  double lowest = price(choices[0]);
  for (const Choice& c : choices) lowest = std::min(lowest, price(c));
  std::erase_if(choices, [&](const Choice& c) { return price(c) > kAlike * lowest; });
  const Choice best = *std::min_element(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.outlook.p99_ns < b.outlook.p99_ns;
  });
  const bool is_worth_it =
      best.meets_goal != current.meets_goal || price(best) < kCheaper * price(current) ||
      (price(best) <= kAlike * price(current) && best.outlook.p99_ns < kFaster * current.outlook.p99_ns);
  Choice choice = is_worth_it ? best : current;
  choice.is_after_change = load.changed_ns > 0;
  return choice;
}

void BatchTuner::adopt(const Choice& choice, int64_t now_ns) {
  const bool is_kept = choice.setting == setting_;
  setting_ = choice.setting;
  planned_ns_ = now_ns;
  if (choice.is_after_change) {  // arrivals before the change are dropped
    const RecentLoad load = recent_load(recent(now_ns), now_ns);
    arrivals_.assign(load.arrivals.begin(), load.arrivals.end());
  }
  cost_.forget_before(now_ns - kForgetNs);
  // Only latencies of one setting and load, and enough that the 99th percentile is not just the worst.
  if (!is_kept || choice.is_after_change) return latencies_.clear();
  if (latencies_.size() < 200) return;
  const double share = quantile(latencies_, 0.99) / static_cast<double>(options_.p99_ns);
  latencies_.clear();
  if (!choice.meets_goal) return;  // overload: a lower target would not help
  if (share > 1) margin_ = std::max(0.3, margin_ * 0.85);
  if (share < 0.85) margin_ = std::min(0.9, margin_ + 0.02);
}

}  // namespace trireme::sched
