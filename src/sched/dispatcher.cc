// The threads of one model: who submits requests, takes batches, watches and answers.
#include "sched/dispatcher.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "sched/idle_work.h"

namespace trireme::sched {
namespace {

/// The interval between checks of the load, and how long after the last request these continue.
constexpr int64_t kLookNs = base::kNsPerSecond / 4, kAskedNs = 10 * base::kNsPerSecond;
constexpr const char* kNoInstance = "no instance of the model is left: their batches do not end";
constexpr const char* kClosing = "the server is shutting down";
/// A run is hung only beyond this multiple of its predicted time, because a model may be slow.
constexpr int64_t kUnexpected = 10;

/// A batch holds requests of one kind only.
bool is_of_background(const std::vector<Request>& batch) {
  return !batch.empty() && batch[0].priority == kBackgroundPriority;
}

int64_t rows_of(std::span<const Request> batch) {
  int64_t rows = 0;
  for (const Request& r : batch) rows += r.rows;
  return rows;
}

/// Whether somebody looks at runs while they are under way.
bool watches_runs(const SchedulerOptions& options) { return options.hang_ns > 0 || options.has_loops; }

/// Empty where there is no memory: if such a batch hangs, its requests are answered once it ends.
std::vector<BatchWatch::Unanswered> unanswered_of(std::span<const Request> batch) {
  std::vector<BatchWatch::Unanswered> unanswered;
  try {
    unanswered.reserve(batch.size());
    for (const Request& r : batch) unanswered.push_back({r.sink, r.timing});
  } catch (const std::bad_alloc&) {
    unanswered.clear();
  }
  return unanswered;
}

/// Who waits for the batch, and until when.
BatchWatch::Limits limits_of(std::span<const Request> batch, const SchedulerOptions& options) {
  BatchWatch::Limits limits{.useless_ns = batch.empty() ? 0 : batch[0].finish_ns};
  for (const Request& r : batch) {
    limits.useless_ns =
        r.finish_ns == 0 || limits.useless_ns == 0 ? 0 : std::max(limits.useless_ns, r.finish_ns);
  }
  if (!options.has_loops) return limits;
  try {
    limits.has_left.reserve(batch.size());
    for (const Request& r : batch) limits.has_left.push_back(r.cancelled);
  } catch (const std::bad_alloc&) {
    limits.has_left.clear();  // the run goes on whoever has left
  }
  return limits;
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Dispatcher::Dispatcher(const SchedulerOptions& options, const base::Clock& clock, IdleWork* idle_work)
    : clock_(clock),
      options_(options),
      idle_work_(idle_work),
      times_(options),
      queue_(options, times_, load_, stats_),
      instances_(static_cast<size_t>(std::max(0, options.instances))) {
  for (size_t i = 0; i < instances_.size(); ++i) instances_[i].index = static_cast<int>(i);
}

void Dispatcher::open_lease(Instance& instance) {
  if (options_.limiter == nullptr) return;
  const RateClaim& claim = options_.claims.at(static_cast<size_t>(instance.index));
  instance.lease.open(*options_.limiter, claim, [this, &instance] {
    const std::lock_guard lock(mutex_);
    instance.lease.granted();
    changed_.notify_all();
  });
}

void Dispatcher::opened(Instance& instance, const Opened& how) {
  const std::lock_guard lock(mutex_);
  instance.scratch_bytes = how.runner.scratch_bytes();
  if (how.may_share) instance.runner = &how.runner;
  for (const BatchTimes::WarmedUp& batch : how.measured) times_.warmed_up(batch);
}

Instance* Dispatcher::submit(Request& request) {
  const bool is_background = request.priority == kBackgroundPriority;
  Waiting waiting{.rows = request.rows,
                  .enqueued_ns = request.timing.enqueued_ns,
                  .deadline_ns = request.deadline_ns,
                  .priority = request.priority,
                  .group = group_key(request.inputs, options_.padding),
                  .finish_ns = request.finish_ns,
                  .runs_late = request.runs_late,
                  .tenant = options_.is_fair ? request.tenant : 0,
                  .weight = request.weight};
  const char* refusal = nullptr;
  Instance* here = nullptr;
  Leaving leaving;
  {
    std::unique_lock lock(mutex_);
    load_.came(waiting.enqueued_ns, is_background);
    times_.arrived(waiting);
    refusal = refusal_of(request, waiting, leaving);
    if (refusal == nullptr) {
      here = take_instance(waiting, lock);
      // It may have released the lock: in a queue closed meanwhile, nobody would look for the request.
      if (here == nullptr && queue_.is_closing()) refusal = kClosing;
    }
    if (refusal != nullptr) {
      ++stats_.refused;
    } else {
      if (here == nullptr) queue_.push(std::move(request), waiting);
      if (idle_work_ != nullptr) idle_work_->hold();
      ++stats_.accepted;
      if (!is_background) load_.accepted(queue_.clients());
      if (here == nullptr && (is_everybody_busy() || options_.p99_ns > 0))
        alarm_.set(next_look_ns(waiting.enqueued_ns));
    }
  }
  leaving.answer();
  if (refusal != nullptr) {
    refuse(request, Ending::refused, base::ErrorCode::unavailable, refusal);
  } else if (here == nullptr) {
    wake_instance();
  }
  return here;
}

/// Why a request cannot be queued, or null.
const char* Dispatcher::refusal_of(const Request& request, Waiting& waiting, Leaving& leaving) {
  if (queue_.is_closing()) return kClosing;
  const bool is_own_hung = request.instance >= 0 && instance(request.instance).watch.is_hung();
  if (is_own_hung || stats_.hung == options_.instances) return kNoInstance;
  int64_t free_ns = INT64_MAX;
  if (waiting.finish_ns != 0) {
    for (const Instance& i : instances_) free_ns = std::min(free_ns, i.busy_until_ns);
  }
  return queue_.refusal_of(waiting, free_ns, leaving);
}

/// An idle instance on which the submitting thread runs the request, or null. If all are in use, each for as
/// little as this one, waits for about the time of a hand-over, without sleeping.
Instance* Dispatcher::take_instance(const Waiting& waiting, std::unique_lock<std::mutex>& lock) {
  constexpr int kPauses = 2000;
  for (bool has_waited = false; queue_.may_skip(waiting); has_waited = true) {
    for (Instance& instance : instances_) {
      if (instance.runner == nullptr || instance.is_taken || instance.busy_until_ns != 0) continue;
      instance.is_taken = true;
      ++busy_;
      load_.began(1, false);
      ++stats_.batches;
      return &instance;
    }
    if (has_waited) return nullptr;
    const uint32_t before = ended_.load(std::memory_order_relaxed);
    lock.unlock();
    for (int i = 0; i < kPauses && ended_.load(std::memory_order_relaxed) == before; ++i) pause_cpu();
    lock.lock();
  }
  return nullptr;
}

/// Wakes all instances if a single one could be the wrong one: it may wait for its lease, be inactive, not be
/// the requested one, or be taken by a submitting thread.
void Dispatcher::wake_instance() {
  const bool may_be_wrong = options_.limiter != nullptr || options_.p99_ns > 0 || options_.places_rows ||
                            (options_.inline_ns > 0 && options_.instances > 1);
  may_be_wrong ? changed_.notify_all() : changed_.notify_one();
}

std::vector<Request> Dispatcher::next_batch(Instance& instance) {
  std::unique_lock lock(mutex_);
  while (true) {
    // Inactive: the plan for the goal needs fewer instances; others replace those that hang.
    const bool is_active =
        queue_.is_closing() || options_.p99_ns == 0 || instance.index < times_.instances() + stats_.hung;
    // Taken by a submitting thread, which notifies when it leaves requests waiting.
    if (instance.is_taken || !is_active) {
      changed_.wait(lock);
      continue;
    }
    Taken taken = queue_.take(clock_.now_ns(), instance.lease.may_run(), instance.index);
    if (!taken.empty()) {
      ++busy_;
      if (!taken.batch.empty()) ++stats_.batches;
      instance.is_background = is_of_background(taken.batch);
      load_.began(taken.batch.size(), instance.is_background);
      instance.busy_until_ns = taken.until_ns;
      const bool more = !queue_.empty();
      if (more && is_everybody_busy()) alarm_.set(queue_.next_sweep_ns());
      const size_t queued = queue_.size() + taken.batch.size();
      for (Request& r : taken.batch) r.timing.queue_length = static_cast<int64_t>(queued);
      lock.unlock();
      if (more) wake_instance();  // another instance may take the rest
      taken.leaving.answer();
      if (!taken.batch.empty()) return std::move(taken.batch);
      lock.lock();
      --busy_;
      continue;
    }
    if (instance.lease.settle(taken.is_ripe, queue_.is_closing(), lock)) continue;
    tell_if_idle();
    if (queue_.is_closing() && queue_.empty()) return {};
    // Requests for instances that are busy are not in this one's view, but may be late or cancelled.
    wait_until(changed_, lock,
               options_.places_rows ? std::min(taken.wake_ns, queue_.next_sweep_ns()) : taken.wake_ns);
  }
}

void Dispatcher::begins(Instance& instance, std::span<const Request> batch, uint64_t group, bool is_again) {
  if (!watches_runs(options_) && options_.p99_ns == 0) return;
  std::vector<BatchWatch::Unanswered> unanswered;
  if (!is_again && options_.hang_ns > 0) unanswered = unanswered_of(batch);
  BatchWatch::Limits limits = limits_of(batch, options_);
  const std::lock_guard lock(mutex_);
  if (!is_again)
    instance.busy_at_start = std::min(busy_, options_.instances);  // busy_ also counts refusing threads
  if (!watches_runs(options_)) return;
  const int64_t now_ns = clock_.now_ns();
  if (options_.hang_ns > 0) {
    const int64_t expected_ns = times_.predict(group, rows_of(batch));
    limits.hangs_ns = now_ns + std::max(options_.hang_ns, kUnexpected * expected_ns);
  }
  if (options_.has_loops && options_.loop_ns > 0) limits.loops_ns = now_ns + options_.loop_ns;
  looks_often_ = looks_often_ || limits.useless_ns != 0 || options_.has_loops;
  if (!is_again) {
    instance.watch.begin(std::move(unanswered), std::move(limits), now_ns);
  } else if (!instance.watch.is_hung() && instance.stop.reason() != engine::StopReason::closing) {
    instance.stop.set(instance.watch.renew(std::move(limits), now_ns));
  }
  alarm_.set(instance.watch.next_look_ns());
}

bool Dispatcher::computed(Instance& instance, const Timing& timing, const Computed& what) {
  // Before the sinks are called: a client that sends its next request at once must not be counted twice.
  const std::lock_guard lock(mutex_);
  load_.ended(what.ended, instance.is_background);
  if (instance.is_background) {
    load_.ran_background(timing.finished_ns, timing.finished_ns - timing.started_ns);
  } else {
    load_.answered(timing.finished_ns - timing.enqueued_ns);
  }
  instance.scratch_bytes = what.scratch_bytes;
  if (what.is_typical) times_.computed(timing, what.group);
  for (const Request& r : what.batch) times_.answered(timing.finished_ns - r.timing.enqueued_ns);
  return instance.watch.is_hung();
}

void Dispatcher::ran(const Instance& instance, uint64_t group, int64_t padded_rows, int64_t started_ns) {
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = clock_.now_ns();
  try {
    times_.ran(group, {.busy = instance.busy_at_start,
                       .padded_rows = padded_rows,
                       .took_ns = now_ns - started_ns,
                       .now_ns = now_ns});
  } catch (const std::bad_alloc&) {
    // No memory for it: nothing is learned from this batch.
  }
}

/// At the end of a batch. True if it had been given up as hung and no longer counts as busy.
bool Dispatcher::end_watch(Instance& instance) {
  instance.stop.set(engine::StopReason::none);
  ended_.fetch_add(1, std::memory_order_relaxed);
  if (!instance.watch.end()) return false;
  --stats_.hung;
  if (options_.on_hang && !queue_.is_closing()) options_.on_hang(instance.index, false);
  return true;
}

void Dispatcher::finish(Instance& instance, size_t still_running) {
  bool asks_again = false;
  {
    const std::lock_guard lock(mutex_);
    instance.busy_until_ns = 0;
    if (!end_watch(instance)) --busy_;
    load_.ended(still_running, instance.is_background);
    asks_again = !queue_.empty();
    instance.lease.run_ends(asks_again);
    tell_if_idle();
  }
  if (!instance.lease.give_back(asks_again)) return;
  const std::lock_guard lock(mutex_);
  instance.lease.granted();
}

bool Dispatcher::ran_here(Instance& instance, uint64_t group, const Timing* timing) {
  const std::lock_guard lock(mutex_);
  if (timing != nullptr) {
    times_.computed(*timing, group);
    load_.answered(timing->finished_ns - timing->enqueued_ns);
    instance.scratch_bytes = instance.runner->scratch_bytes();
  }
  load_.ended(1, false);
  instance.is_taken = false;
  const bool had_hung = end_watch(instance);
  if (!queue_.empty() || queue_.is_closing()) changed_.notify_all();
  return had_hung;
}

void Dispatcher::told_here(bool had_hung) {
  const std::lock_guard lock(mutex_);
  if (!had_hung) --busy_;  // if it hung, the keeper has subtracted it already
  tell_if_idle();
}

/// Whether no instance would notice a late request: an instance that waits checks the queue itself.
bool Dispatcher::is_everybody_busy() const {
  const int active = queue_.is_closing() ? options_.instances : times_.instances();
  return busy_ + stats_.hung >= active || options_.limiter != nullptr;
}

/// Wakes those that wait for idleness: drain(), background work, and the keeper of a closing model.
void Dispatcher::tell_if_idle() {
  if (busy_ > 0 || !queue_.empty()) return;
  if (idle_work_ != nullptr) idle_work_->release();
  idle_.notify_all();
  if (queue_.is_closing()) alarm_.ring();
}

void Dispatcher::keep() {
  std::unique_lock lock(mutex_);
  uint32_t seen = 0;
  // While the model closes, hung and late batches are still answered.
  while (!queue_.is_closing() || busy_ > 0 || !queue_.empty()) {
    refuse_late(lock);
    if (watches_runs(options_)) end_runs(lock);
    if (const auto choice = queue_.is_closing() ? std::nullopt : times_.plan(lock, clock_)) {
      changed_.notify_all();
      lock.unlock();
      if (options_.on_tuned) options_.on_tuned(*choice);
      lock.lock();
    }
    const int64_t now_ns = clock_.now_ns();
    int64_t look_ns = next_look_ns(now_ns);
    // While batches keep ending, the keeper checks at intervals, so that not each of them must wake it.
    const uint32_t ended = ended_.load(std::memory_order_relaxed);
    if (watches_runs(options_) && std::exchange(seen, ended) != ended)
      look_ns = std::min(look_ns, now_ns + (std::exchange(looks_often_, false) ? kLookNs : options_.hang_ns));
    if (queue_.is_closing() && busy_ == 0 && queue_.empty()) return;
    alarm_.sleep(lock, look_ns);
  }
}

/// The time at which there is something to check.
int64_t Dispatcher::next_look_ns(int64_t now_ns) const {
  int64_t look_ns = is_everybody_busy() ? queue_.next_sweep_ns() : INT64_MAX;
  for (const Instance& instance : instances_) look_ns = std::min(look_ns, instance.watch.next_look_ns());
  const int64_t last_ns = load_.last_arrival_ns();
  const bool is_asked = now_ns - last_ns < kAskedNs && last_ns != 0;
  if (options_.p99_ns > 0 && is_asked && !queue_.is_closing()) look_ns = std::min(look_ns, now_ns + kLookNs);
  return look_ns;
}

/// Answers requests that are late or whose client has left while all instances are busy.
void Dispatcher::refuse_late(std::unique_lock<std::mutex>& lock) {
  const int64_t now_ns = clock_.now_ns();
  if (!is_everybody_busy() || queue_.next_sweep_ns() > now_ns) return;
  Leaving leaving;
  queue_.sweep(now_ns, leaving);
  if (leaving.empty()) return;
  ++busy_;
  lock.unlock();
  leaving.answer();
  lock.lock();
  --busy_;
  tell_if_idle();
}

/// Ends runs that nobody waits for and loops that have had their time, and gives up what hangs.
void Dispatcher::end_runs(std::unique_lock<std::mutex>& lock) {
  const int64_t now_ns = clock_.now_ns();
  std::vector<BatchWatch::Unanswered> unanswered;
  std::vector<Request> bound;  // assigned to a hung instance
  for (Instance& instance : instances_) {
    if (const auto reason = instance.watch.look(now_ns); reason != engine::StopReason::none)
      instance.stop.set(reason);
    if (!instance.watch.is_overdue(now_ns)) continue;
    ++stats_.hung;
    --busy_;
    std::ranges::move(instance.watch.give_up(), std::back_inserter(unanswered));
    std::ranges::move(queue_.take_of_instance(instance.index), std::back_inserter(bound));
    if (options_.on_hang) options_.on_hang(instance.index, true);
  }
  if (unanswered.empty()) return;
  if (stats_.hung == options_.instances) std::ranges::move(queue_.take_all(), std::back_inserter(bound));
  ++busy_;
  changed_.notify_all();
  lock.unlock();
  for (const BatchWatch::Unanswered& u : unanswered) {
    u.sink({.outputs = {},
            .error = base::Error(base::ErrorCode::unavailable,
                                 "the model's instance hangs: the batch took longer than the time limit"),
            .ending = Ending::failed,
            .timing = u.timing});
  }
  refuse_all(bound, kNoInstance);
  lock.lock();
  // Only now, or the run's own error could become the answer. An instance that ended meanwhile has new work.
  for (Instance& instance : instances_) {
    if (instance.watch.is_hung()) instance.stop.set(engine::StopReason::hangs);
  }
  --busy_;
  tell_if_idle();
}

void Dispatcher::close() {
  std::vector<Request> left;
  {
    const std::lock_guard lock(mutex_);
    queue_.close();
    left = queue_.take_all();
    for (Instance& instance : instances_) {
      if (!instance.watch.is_hung()) instance.stop.set(engine::StopReason::closing);
    }
    changed_.notify_all();
    alarm_.ring();
  }
  refuse_all(left, kClosing);
}

void Dispatcher::drain() {
  std::unique_lock lock(mutex_);
  queue_.close();
  changed_.notify_all();
  idle_.wait(lock, [&] { return queue_.empty() && busy_ == 0; });
}

SchedulerStats Dispatcher::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.waiting = queue_.size();
  for (const Instance& instance : instances_) stats.scratch_bytes += instance.scratch_bytes;
  return stats;
}

}  // namespace trireme::sched
