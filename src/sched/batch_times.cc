// Measures how long batches take, and derives the limits for the next ones.
#include "sched/batch_times.h"

#include <algorithm>
#include <new>

namespace trireme::sched {

BatchTimes::BatchTimes(const SchedulerOptions& options)
    : options_(options),
      prices_rows_(!options.runs_whole && !options.places_rows && options.padding.is_batched &&
                   options.limits.max_rows > 1),
      prices_(options.padding.row_buckets, options.limits.max_rows),
      tuner_({.p99_ns = options.p99_ns,
              .max_rows = options.limits.max_rows,
              .row_buckets = options.padding.row_buckets,
              .instances = options.instances}) {}

void BatchTimes::computed(const Timing& timing, uint64_t group) {
  const int64_t took_ns = timing.finished_ns - timing.started_ns;
  // If the time depends on a request's values, a quick earlier request predicts nothing.
  if (options_.inline_ns > 0 && !timing.depends_on_data)
    computing_.observe(group, timing.padded_rows, took_ns, timing.finished_ns);
  if (prices_rows_) prices_.observe(group, timing.padded_rows, took_ns, timing.finished_ns);
}

void BatchTimes::ran(uint64_t group, const Ran& run) {
  whole_.observe(group, run.padded_rows, run.took_ns, run.now_ns);
  if (has_goal()) tuner_.ran(run.busy, run.padded_rows, run.took_ns, run.now_ns);
}

void BatchTimes::warmed_up(const WarmedUp& batch) {
  const int64_t padded_rows = bucket_of(options_.padding.row_buckets, batch.rows);
  tuner_.ran(options_.instances, padded_rows, batch.took_ns, batch.now_ns);
}

void BatchTimes::arrived(const Waiting& waiting) {
  if (has_goal()) tuner_.arrived({waiting.enqueued_ns, waiting.rows});
}

void BatchTimes::answered(int64_t latency_ns) {
  if (has_goal()) tuner_.answered(latency_ns);
}

int64_t BatchTimes::padded(int64_t rows) const {
  return options_.padding.is_batched ? bucket_of(options_.padding.row_buckets, rows) : rows;
}

int64_t BatchTimes::predict(uint64_t group, int64_t rows) const {
  return whole_.predict(group, padded(rows));
}

bool BatchTimes::is_quick(const Waiting& waiting) const {
  const int64_t cost_ns = computing_.predict(waiting.group, padded(waiting.rows));
  return cost_ns > 0 && cost_ns <= options_.inline_ns;
}

double BatchTimes::cost_of(const Waiting& waiting) const {
  const int64_t most = options_.limits.max_rows;
  const auto full_ns = static_cast<double>(predict(waiting.group, most));
  const double row_ns = full_ns > 0 ? full_ns / static_cast<double>(most) : 1e6;
  return row_ns * static_cast<double>(std::max<int64_t>(1, waiting.rows));
}

BatchLimits BatchTimes::limits(int64_t now_ns) const {
  BatchLimits limits = options_.limits;
  limits.instances = options_.instances;
  if (prices_rows_) limits.worth = prices_.worth_at(now_ns, may_end_window());
  if (!has_goal()) return limits;
  limits.window_ns = tuner_.setting().window_ns;
  limits.max_rows = tuner_.setting().max_rows;
  limits.instances = tuner_.setting().instances;
  return limits;
}

int BatchTimes::instances() const { return has_goal() ? tuner_.setting().instances : options_.instances; }

std::optional<BatchTuner::Choice> BatchTimes::plan(std::unique_lock<std::mutex>& lock,
                                                   const base::Clock& clock) {
  if (!has_goal() || !tuner_.wants_plan(clock.now_ns())) return std::nullopt;
  std::optional<BatchTuner::Choice> choice;
  int64_t now_ns = 0;
  try {
    const BatchTuner copy = tuner_;
    lock.unlock();
    now_ns = clock.now_ns();
    choice = copy.plan(now_ns);
  } catch (const std::bad_alloc&) {
    // No memory for it: the next attempt plans again.
  }
  if (!lock.owns_lock()) lock.lock();
  if (choice) tuner_.adopt(*choice, now_ns);
  return choice;
}

}  // namespace trireme::sched
