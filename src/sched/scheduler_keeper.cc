// The scheduler's keeper: plans the batching for its goal, and looks for batches that do not end.
#include <algorithm>

#include "sched/scheduler.h"

namespace trireme::sched {
namespace {

constexpr int64_t kLookNs = base::kNsPerSecond / 4;
/// A model may be slow; hanging is what it has never done.
constexpr int64_t kUnexpected = 10;

}  // namespace

/// Whoever is first answers: the run or the watchdog.
struct Scheduler::Answer {
  std::atomic<bool> is_given{false};
  std::function<void(Outcome&&)> sink;
  Timing timing;

  void give(Outcome&& outcome) {
    if (is_given.exchange(true)) return;
    sink(std::move(outcome));
  }
};

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
  std::vector<std::shared_ptr<Answer>> answers;
  int64_t rows = 0;
  for (Request& r : batch) {
    rows += r.rows;
    if (options_.hang_ns == 0) continue;
    const auto answer = std::make_shared<Answer>();
    answer->sink = std::move(r.sink);
    answer->timing = r.timing;
    r.sink = [answer](Outcome&& outcome) { answer->give(std::move(outcome)); };
    answers.push_back(answer);
  }
  const std::lock_guard lock(mutex_);
  instance.answers = std::move(answers);
  instance.busy_at_start = busy_;
  if (options_.hang_ns > 0)
    instance.hangs_at_ns = clock_.now_ns() + std::max(options_.hang_ns, kUnexpected * predict(group, rows));
}

/// With the lock held, at the end of a batch.
void Scheduler::end_watch(Instance& instance) {
  instance.answers.clear();
  instance.hangs_at_ns = 0;
  instance.stop = false;
  if (instance.is_hung && options_.on_hang && !closing_)
    options_.on_hang(static_cast<int>(&instance - instances_.data()), false);
}

void Scheduler::run_keeper() {
  const int64_t look_ns =
      options_.hang_ns > 0 ? std::clamp<int64_t>(options_.hang_ns / 4, base::kNsPerMs, kLookNs) : kLookNs;
  std::unique_lock lock(mutex_);
  while (!closing_) {
    keep_.wait_for(lock, std::chrono::nanoseconds(look_ns));
    if (options_.hang_ns > 0) keep_watch(lock);
    if (options_.p99_ns == 0 || closing_ || !tuner_.wants_plan(clock_.now_ns())) continue;
    keep_plan(lock);
  }
  // What hangs while the model goes is answered too.
  while (options_.hang_ns > 0 && busy_ > 0) {
    keep_.wait_for(lock, std::chrono::nanoseconds(look_ns));
    keep_watch(lock);
  }
}

/// Plans on a copy, without the lock: it takes milliseconds.
void Scheduler::keep_plan(std::unique_lock<std::mutex>& lock) {
  const BatchTuner copy = tuner_;
  lock.unlock();
  const int64_t now_ns = clock_.now_ns();
  const std::optional<BatchTuner::Choice> choice = copy.plan(now_ns);
  lock.lock();
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
  std::vector<std::shared_ptr<Answer>> unanswered;
  for (size_t i = 0; i < instances_.size(); ++i) {
    Instance& instance = instances_[i];
    if (instance.is_hung || instance.hangs_at_ns == 0 || now_ns < instance.hangs_at_ns) continue;
    instance.is_hung = true;
    ++stats_.hung;
    --busy_;
    unanswered.insert(unanswered.end(), instance.answers.begin(), instance.answers.end());
    if (options_.on_hang) options_.on_hang(static_cast<int>(i), true);
  }
  if (unanswered.empty()) return;
  const bool is_last = stats_.hung == options_.instances;
  if (busy_ == 0 && queue_.empty()) idle_.notify_all();
  changed_.notify_all();
  lock.unlock();
  for (const auto& answer : unanswered) {
    answer->give(
        {.outputs = {},
         .error = base::Error(base::ErrorCode::unavailable,
                              "the model's instance hangs: the batch took longer than the time limit"),
         .ending = Ending::failed,
         .timing = answer->timing});
  }
  if (is_last) refuse_queue("no instance of the model is left: their batches do not end");
  lock.lock();
  // Only now, or the run's own error could be the answer; who has come back meanwhile has other work.
  for (Instance& instance : instances_) {
    if (instance.is_hung) instance.stop = true;
  }
  if (busy_ == 0 && queue_.empty()) idle_.notify_all();
}

}  // namespace trireme::sched
