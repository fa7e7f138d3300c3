// The scheduler's keeper: plans the batching for its goal, and looks for batches that do not end.
#include <algorithm>
#include <new>
#include <utility>

#include "sched/idle_work.h"
#include "sched/scheduler.h"

namespace trireme::sched {
namespace {

/// Between two looks at the load, and how long after the last request they end.
constexpr int64_t kLookNs = base::kNsPerSecond / 4, kAskedNs = 10 * base::kNsPerSecond;
constexpr const char* kNoInstance = "no instance of the model is left: their batches do not end";
/// A model may be slow; hanging is what it has never done.
constexpr int64_t kUnexpected = 10;

void refuse_unrun(Request& request, const char* reason) {
  request.sink({.outputs = {},
                .error = base::Error(base::ErrorCode::unavailable, reason),
                .ending = Ending::refused,
                .timing = request.timing});
}

}  // namespace

/// Times every size once more after the warm-up, so that the tuner knows them before the first request.
void Scheduler::measure(BatchRunner& runner) {
  for (const WarmUp& shapes : options_.warm_up) {
    if (!shapes.is_run) continue;
    for (int64_t rows : shapes.rows) {
      const int64_t start_ns = clock_.now_ns();
      runner.warm_up({.example = shapes.example, .rows = {rows}, .is_run = true});
      const int64_t now_ns = clock_.now_ns();
      const std::lock_guard lock(mutex_);
      // Instances start together, so they were all at it.
      tuner_.ran(options_.instances, bucket_of(options_.padding.row_buckets, rows), now_ns - start_ns,
                 now_ns);
    }
  }
}

void Scheduler::watch_batch(Instance& instance, std::vector<Request>& batch, uint64_t group) {
  std::vector<Unanswered> unanswered;
  int64_t rows = 0, useless_at_ns = batch.empty() ? 0 : batch[0].finish_ns;
  for (const Request& r : batch) {
    rows += r.rows;
    useless_at_ns = r.finish_ns == 0 || useless_at_ns == 0 ? 0 : std::max(useless_at_ns, r.finish_ns);
  }
  try {
    if (options_.hang_ns > 0) unanswered.reserve(batch.size());
    for (size_t i = 0; i < batch.size() && options_.hang_ns > 0; ++i)
      unanswered.push_back({batch[i].sink, batch[i].timing});
  } catch (const std::bad_alloc&) {
    // It runs unwatched.
  }
  const std::lock_guard lock(mutex_);
  instance.unanswered = std::move(unanswered);
  instance.busy_at_start = std::min(busy_, options_.instances);  // others may be answering refusals
  if (options_.hang_ns == 0) return;
  instance.hangs_at_ns = clock_.now_ns() + std::max(options_.hang_ns, kUnexpected * predict(group, rows));
  instance.useless_at_ns = useless_at_ns;
  wake_keeper(instance.hangs_at_ns);
  if (useless_at_ns == 0) return;
  has_deadlines_ = true;
  wake_keeper(useless_at_ns);
}

/// With the lock held, at the end of a batch.
void Scheduler::end_watch(Instance& instance) {
  instance.unanswered.clear();
  instance.hangs_at_ns = instance.useless_at_ns = 0;
  instance.stop = false;
  if (instance.is_hung && options_.on_hang && !closing_)
    options_.on_hang(static_cast<int>(&instance - instances_.data()), false);
}

/// It sleeps for as long as there is nothing to look for: a model that nobody asks costs no wake-up.
void Scheduler::run_keeper() {
  std::unique_lock lock(mutex_);
  uint32_t seen = 0;
  // What hangs or is late while the model goes is answered too.
  while (!closing_ || busy_ > 0 || !queue_.empty()) {
    keep_queue(lock);
    if (options_.hang_ns > 0) keep_watch(lock);
    if (options_.p99_ns > 0 && !closing_ && tuner_.wants_plan(clock_.now_ns())) keep_plan(lock);
    const int64_t now_ns = clock_.now_ns();
    int64_t look_ns = next_look_ns(now_ns);
    // Batches that come one at a time need not wake it each.
    const uint32_t ended = ended_.load(std::memory_order_relaxed);
    if (options_.hang_ns > 0 && std::exchange(seen, ended) != ended)
      look_ns =
          std::min(look_ns, now_ns + (std::exchange(has_deadlines_, false) ? kLookNs : options_.hang_ns));
    if (closing_ && busy_ == 0 && queue_.empty()) return;
    keeper_wakes_ns_ = look_ns;
    if (look_ns == INT64_MAX) {
      keep_.wait(lock);
    } else {
      keep_.wait_until(lock, std::chrono::steady_clock::time_point{std::chrono::nanoseconds(look_ns)});
    }
    keeper_wakes_ns_ = 0;
  }
}

/// With the lock held: when there is something to look for.
int64_t Scheduler::next_look_ns(int64_t now_ns) const {
  int64_t look_ns = is_everybody_busy() ? queue_.next_sweep_ns() : INT64_MAX;
  for (const Instance& instance : instances_) {
    if (!instance.is_hung && instance.hangs_at_ns != 0) look_ns = std::min(look_ns, instance.hangs_at_ns);
    if (instance.useless_at_ns != 0) look_ns = std::min(look_ns, instance.useless_at_ns);
  }
  const bool is_asked = now_ns - load_.last_arrival_ns < kAskedNs && load_.last_arrival_ns != 0;
  if (options_.p99_ns > 0 && is_asked && !closing_) look_ns = std::min(look_ns, now_ns + kLookNs);
  return look_ns;
}

/// With the lock held.
void Scheduler::wake_keeper(int64_t by_ns) {
  if (by_ns >= keeper_wakes_ns_) return;
  keeper_wakes_ns_ = by_ns;
  keep_.notify_one();
}

/// Whether nobody is there who would see that a request is late: an instance that waits looks itself.
bool Scheduler::is_everybody_busy() const {
  const int active = options_.p99_ns > 0 && !closing_ ? tuner_.setting().instances : options_.instances;
  return busy_ + stats_.hung >= active || options_.limiter != nullptr;
}

/// With the lock held: drain(), work that may wait, and the keeper of a model that goes wait for it.
void Scheduler::tell_if_idle() {
  if (busy_ > 0 || !queue_.empty()) return;
  if (idle_work_ != nullptr) idle_work_->release();
  idle_.notify_all();
  if (closing_) keep_.notify_all();
}

/// Lets go who is late or has left while all instances are busy.
void Scheduler::keep_queue(std::unique_lock<std::mutex>& lock) {
  const int64_t now_ns = clock_.now_ns();
  if (!is_everybody_busy() || queue_.next_sweep_ns() > now_ns) return;
  Taken leaving;
  sweep(now_ns, leaving);
  if (leaving.empty()) return;
  ++busy_;
  lock.unlock();
  answer_unrun(leaving);
  lock.lock();
  --busy_;
  tell_if_idle();
}

/// Plans on a copy, without the lock: it takes milliseconds.
void Scheduler::keep_plan(std::unique_lock<std::mutex>& lock) {
  std::optional<BatchTuner::Choice> choice;
  int64_t now_ns = 0;
  try {
    const BatchTuner copy = tuner_;
    lock.unlock();
    now_ns = clock_.now_ns();
    choice = copy.plan(now_ns);
  } catch (const std::bad_alloc&) {
    // The next look plans again.
  }
  if (!lock.owns_lock()) lock.lock();
  if (!choice) return;
  tuner_.adopt(*choice, now_ns);
  changed_.notify_all();
  if (!options_.on_tuned) return;
  lock.unlock();
  options_.on_tuned(*choice);
  lock.lock();
}

void Scheduler::keep_watch(std::unique_lock<std::mutex>& lock) {
  const int64_t now_ns = clock_.now_ns();
  std::vector<Unanswered> unanswered;
  std::vector<Request> bound;  // to an instance that hangs
  for (size_t i = 0; i < instances_.size(); ++i) {
    Instance& instance = instances_[i];
    // Past the deadline of all its requests a run goes on for nobody.
    if (instance.useless_at_ns != 0 && now_ns >= instance.useless_at_ns) {
      instance.stop = true;
      instance.useless_at_ns = 0;
    }
    if (instance.is_hung || instance.hangs_at_ns == 0 || now_ns < instance.hangs_at_ns) continue;
    instance.is_hung = true;
    ++stats_.hung;
    --busy_;
    unanswered.insert(unanswered.end(), instance.unanswered.begin(), instance.unanswered.end());
    for (Request& r : queue_.take_of_instance(static_cast<int>(i))) bound.push_back(std::move(r));
    if (options_.on_hang) options_.on_hang(static_cast<int>(i), true);
  }
  if (unanswered.empty()) return;
  const bool is_last = stats_.hung == options_.instances;
  tell_if_idle();
  changed_.notify_all();
  lock.unlock();
  for (const Unanswered& u : unanswered) {
    u.sink({.outputs = {},
            .error = base::Error(base::ErrorCode::unavailable,
                                 "the model's instance hangs: the batch took longer than the time limit"),
            .ending = Ending::failed,
            .timing = u.timing});
  }
  for (Request& r : bound) refuse_unrun(r, kNoInstance);
  if (is_last) refuse_queue(kNoInstance);
  lock.lock();
  // Only now, or the run's own error could be the answer; who has come back meanwhile has other work.
  for (Instance& instance : instances_) {
    if (instance.is_hung) instance.stop = true;
  }
  tell_if_idle();
}

}  // namespace trireme::sched
