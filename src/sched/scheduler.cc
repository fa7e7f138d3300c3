// The dynamic batcher of one model: a bounded queue in front of instances that run batches.
#include "sched/scheduler.h"

#include <algorithm>

namespace trireme::sched {

struct Scheduler::Instance {
  Instance(std::shared_ptr<const engine::PreparedModel> model, const engine::SessionOptions& options,
           const Padding& padding)
      : session(std::move(model), options), runner(session, padding) {}
  engine::Session session;
  BatchRunner runner;
  std::mutex turn;  ///< warm-up and the owner thread take turns; uncontended afterwards
  std::thread thread;
};

Scheduler::Scheduler(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
                     const base::Clock& clock, std::function<void(int64_t, int64_t)> on_batch)
    : clock_(clock), options_(std::move(options)), on_batch_(std::move(on_batch)) {
  base::require(options_.instances >= 1 && options_.limits.max_rows >= 1, "a scheduler needs an instance and a row");
  for (int i = 0; i < options_.instances; ++i) {
    engine::SessionOptions session = options_.session;
    if (options_.pin) {
      for (int t = 0; t < session.threads; ++t) session.cpus.push_back(i * session.threads + t);
    }
    instances_.push_back(std::make_unique<Instance>(model, session, options_.padding));
  }
  for (auto& instance : instances_) instance->thread = std::thread([this, &one = *instance] { work(one); });
}

Scheduler::~Scheduler() {
  std::vector<Item> left;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    left.swap(queue_);
  }
  for (Item& item : left) refuse(item.request, "the server is shutting down");
  changed_.notify_all();
  for (auto& instance : instances_) instance->thread.join();
}

void Scheduler::refuse(Request& request, const char* message) {
  request.sink({.outputs = {}, .error = base::Error(base::ErrorCode::unavailable, message), .timing = request.timing});
}

void Scheduler::warm_up(const std::vector<tensor::Tensor>& example) {
  std::vector<int64_t> rows = options_.padding.row_buckets;
  if (rows.empty()) rows = {1};
  for (auto& instance : instances_) {
    const std::lock_guard lock(instance->turn);
    for (int64_t r : rows) instance->runner.warm_up(example, r);
  }
}

void Scheduler::submit(Request request) {
  request.timing.enqueued_ns = clock_.now_ns();
  Waiting waiting{.rows = request.rows, .enqueued_ns = request.timing.enqueued_ns, .deadline_ns = request.deadline_ns,
                  .priority = request.priority, .group = group_key(request.inputs, options_.padding)};
  const char* refusal = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      refusal = "the server is shutting down";
    } else if (queue_.size() >= options_.max_queue) {
      refusal = "Exceeds maximum queue size";
      ++stats_.refused_full;
    } else {
      queue_.push_back({std::move(request), waiting});
      ++stats_.accepted;
    }
  }
  if (refusal != nullptr) {
    refuse(request, refusal);
  } else {
    changed_.notify_one();
  }
}

std::vector<Request> Scheduler::next_batch() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::vector<Waiting> waiting;
    for (const Item& item : queue_) waiting.push_back(item.waiting);
    BatchLimits limits = options_.limits;
    if (closing_) limits.window_ns = 0;
    const Decision decision = decide(waiting, clock_.now_ns(), limits, compute_ns_);
    std::vector<Request> batch, expired;
    for (size_t i : decision.take) batch.push_back(std::move(queue_[i].request));
    for (size_t i : decision.expired) expired.push_back(std::move(queue_[i].request));
    size_t index = 0;
    std::erase_if(queue_, [&](const Item&) {
      const size_t i = index++;
      const auto listed = [i](const std::vector<size_t>& list) {
        return std::find(list.begin(), list.end(), i) != list.end();
      };
      return listed(decision.take) || listed(decision.expired);
    });
    stats_.expired += expired.size();
    if (!batch.empty()) ++busy_, ++stats_.batches;
    const bool over = closing_ && queue_.empty() && batch.empty();
    if (!expired.empty() || !batch.empty() || over) {
      if (over) idle_.notify_all();
      lock.unlock();
      for (Request& r : expired) refuse(r, "Request timeout expired");
      if (!batch.empty() || over) return batch;
      lock.lock();
      continue;
    }
    if (decision.wake_ns == INT64_MAX) {
      changed_.wait(lock);
    } else {
      const std::chrono::steady_clock::time_point wake{std::chrono::nanoseconds(decision.wake_ns)};
      changed_.wait_until(lock, wake);
    }
  }
}

void Scheduler::work(Instance& instance) {
  while (true) {
    std::vector<Request> batch = next_batch();
    if (batch.empty()) return;
    std::vector<Request> live;
    uint64_t gone = 0;
    for (Request& r : batch) {
      if (r.cancelled && r.cancelled()) {
        ++gone;
        r.sink({.outputs = {}, .error = base::Error(base::ErrorCode::unavailable, "the client left"), .timing = r.timing});
      } else {
        r.timing.started_ns = clock_.now_ns();
        live.push_back(std::move(r));
      }
    }
    const int64_t start = clock_.now_ns();
    if (!live.empty()) {
      const std::lock_guard turn(instance.turn);
      instance.runner.run(live, clock_);
      if (on_batch_) on_batch_(live[0].timing.batch_rows, live[0].timing.padded_rows);
    }
    const std::lock_guard lock(mutex_);
    stats_.cancelled += gone;
    // A quarter of the new value: follows a change of load within a few batches, shrugs off one outlier.
    if (!live.empty()) compute_ns_ += (clock_.now_ns() - start - compute_ns_) / 4;
    if (--busy_ == 0 && queue_.empty()) idle_.notify_all();
  }
}

void Scheduler::drain() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  idle_.wait(lock, [&] { return queue_.empty() && busy_ == 0; });
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.waiting = queue_.size();
  return stats;
}

}  // namespace trireme::sched
