// How long batches take, learned from those that ran, and what limits follow for the next.
#pragma once

#include <mutex>
#include <optional>

#include "base/clock.h"
#include "sched/policy/batch_cost.h"
#include "sched/policy/row_prices.h"
#include "sched/scheduler_options.h"

namespace trireme::sched {

/// What a batch took and how much it was, as each rule needs it: the whole time for due times and shares
/// (BatchCost), gathering and computing for what runs where it is read (BatchCost) and for the worth of rows
/// (RowPrices), times beside other instances for a goal (BatchTuner). Nothing is measured that no option asks
/// for. Not for several threads at once.
class BatchTimes {
 public:
  /// `options` outlives it.
  explicit BatchTimes(const SchedulerOptions& options);

  /// Gathered and computed, before the sinks.
  void computed(const Timing& timing, uint64_t group);
  struct Ran {
    int busy = 1;  ///< instances at work when it began, with its own
    int64_t padded_rows = 0, took_ns = 0, now_ns = 0;
  };
  /// The whole batch, with its sinks. Throws std::bad_alloc.
  void ran(uint64_t group, const Ran& run);
  /// A batch of the warm-up, while all instances were at theirs.
  struct WarmedUp {
    int64_t rows = 1, took_ns = 0, now_ns = 0;
  };
  void warmed_up(const WarmedUp& batch);
  /// For the goal: a request came, or was answered so long afterwards.
  void arrived(const Waiting& waiting);
  void answered(int64_t latency_ns);

  /// Expected time of a whole batch of so many rows; 0: unknown.
  int64_t predict(uint64_t group, int64_t rows) const;
  PredictNs predictor() const {
    return [this](uint64_t group, int64_t rows) { return predict(group, rows); };
  }
  /// The same from what was seen lately and more than once.
  PredictNs recent_predictor(int64_t now_ns) const {
    return [this, now_ns](uint64_t group, int64_t rows) {
      return whole_.predict_lately(group, padded(rows), now_ns);
    };
  }
  /// Whether a request is so quick that it should run where it was read (SchedulerOptions::inline_ns).
  bool is_quick(const Waiting& waiting) const;
  /// What a request adds to a full batch; a millisecond a row where nothing is known yet.
  double cost_of(const Waiting& waiting) const;

  /// Those of the options, as measured prices and the goal make them now.
  BatchLimits limits(int64_t now_ns) const;
  /// Whether a batch need wait for nobody once all are here who usually are: a window that was asked for or
  /// found for the goal is waited out.
  bool may_end_window() const { return options_.is_window_adaptive && !has_goal(); }
  /// How many instances should work.
  int instances() const;
  /// Finds the setting for the goal anew where it is time: on a copy, with the lock released, since it takes
  /// milliseconds. Empty: nothing was planned.
  std::optional<BatchTuner::Choice> plan(std::unique_lock<std::mutex>& lock, const base::Clock& clock);

 private:
  bool has_goal() const { return options_.p99_ns > 0; }
  int64_t padded(int64_t rows) const;

  const SchedulerOptions& options_;
  const bool prices_rows_;  ///< batches are cut where further rows make none cheaper
  BatchCost whole_;
  BatchCost computing_;
  RowPrices prices_;
  BatchTuner tuner_;
};

}  // namespace trireme::sched
