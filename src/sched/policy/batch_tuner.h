// Finds window, largest batch and number of instances for a latency goal while a model serves.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "sched/policy/smoothed_time.h"

namespace trireme::sched {

/// What the tuner chooses.
struct BatchSetting {
  int64_t window_ns = 0;
  int64_t max_rows = 1;
  int instances = 1;
  bool operator==(const BatchSetting&) const = default;
};

struct TunerOptions {
  int64_t p99_ns = 0;                ///< goal: from a request's arrival in the queue to its result
  int64_t max_rows = 1;              ///< the most that may be chosen
  std::vector<int64_t> row_buckets;  ///< batches are filled up to one of these; empty: exact
  int instances = 1;                 ///< the most that may be chosen
};

/// Times of batches by padded rows and by how many instances were running, which share memory and cores.
class ConcurrentCost {
 public:
  void observe(int busy, int64_t rows, int64_t ns, int64_t now_ns);
  /// Usual time plus its usual spread; 0 where nothing at all is known. A size that never ran beside so many
  /// others is taken from how it ran beside another number, scaled by sizes that ran beside both.
  double predict(int busy, int64_t rows) const;
  /// Without the spread.
  double mean(int busy, int64_t rows) const;
  /// Lets go what was not seen for long where another number of instances knows that size: the machine may
  /// have had other work then.
  void forget_before(int64_t ns);

 private:
  struct Cost {
    SmoothedTime time;
    int64_t seen_ns = 0;
  };
  using Sizes = std::map<int64_t, Cost>;
  double lookup(int busy, int64_t rows, bool with_spread) const;
  double scale(const Sizes& wanted, const Sizes& known) const;

  std::map<int, Sizes> costs_;
};

/// A request as it came.
struct Arrival {
  int64_t at_ns = 0;
  int64_t rows = 1;
};

/// What a setting would have done with recent arrivals.
struct Outlook {
  double p99_ns = 0;
  double row_ns = 0;      ///< time of instances for one row
  double rows_per_s = 0;  ///< done from the first arrival to the last result
};

/// Runs arrivals through the window's rule and measured times: first come first served, as the policy does
/// where nobody has a deadline or priority.
Outlook replay(const BatchSetting& setting, const std::vector<Arrival>& arrivals, const ConcurrentCost& cost,
               const std::vector<int64_t>& row_buckets);

/// The arrivals that say what comes next: where the rate has changed within them, those since, and if these
/// are few the earlier ones too, drawn out or pressed together in time until they come as fast.
struct RecentLoad {
  std::vector<Arrival> arrivals;
  int64_t changed_ns = 0;  ///< when the rate changed; 0: it did not
};
RecentLoad recent_load(std::vector<Arrival> arrivals, int64_t now_ns);

/// Replays what came recently under every setting of a grid, and takes the one that costs least of those that
/// meet the goal; where none does, the one with most rows a second. It changes for a gain of 5 % or a missed
/// goal only. What it aims at goes down where measured latencies miss the goal and slowly up again. Not for
/// several threads at once, but a copy can be asked in its own time.
class BatchTuner {
 public:
  explicit BatchTuner(TunerOptions options);

  void arrived(const Arrival& arrival);
  void ran(int busy, int64_t padded_rows, int64_t took_ns, int64_t now_ns);
  void answered(int64_t latency_ns);

  struct Choice {
    BatchSetting setting;
    Outlook outlook;
    bool meets_goal = false;
    bool is_after_change = false;  ///< of the load: latencies measured before are of another one
  };
  /// Whether it is time for a plan: once a second, and soon after the load has changed.
  bool wants_plan(int64_t now_ns) const;
  /// The choice for now; costs milliseconds. Empty while too little is known. Does not change the tuner.
  std::optional<Choice> plan(int64_t now_ns) const;
  /// Makes it the setting and judges the last period's latencies.
  void adopt(const Choice& choice, int64_t now_ns);

  const BatchSetting& setting() const { return setting_; }
  double aim_ns() const { return margin_ * static_cast<double>(options_.p99_ns); }

 private:
  std::vector<Arrival> recent(int64_t now_ns) const;
  std::vector<BatchSetting> candidates() const;

  TunerOptions options_;
  BatchSetting setting_;
  ConcurrentCost cost_;
  std::deque<Arrival> arrivals_;
  std::vector<int64_t> latencies_;  ///< since the last judgement
  double margin_ = 0.8;             ///< of the goal, that is aimed at
  int64_t planned_ns_ = 0;
};

}  // namespace trireme::sched
