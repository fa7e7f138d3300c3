// The dynamic batcher of one model: a bounded queue in front of instances that run batches.
#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

namespace trireme::sched {
namespace {

void refuse(Request& request, Ending ending, base::ErrorCode code, const char* message) {
  request.sink(
      {.outputs = {}, .error = base::Error(code, message), .ending = ending, .timing = request.timing});
}

/// Empty if the inputs agree with `rows`; a batch is gathered and split by that number.
const char* misfit(const Request& request, const Padding& padding) {
  if (!padding.is_batched) return nullptr;
  for (const tensor::Tensor& t : request.inputs) {
    if (t.rank() > 0 && t.dims()[0] != request.rows) return "inputs differ in their number of rows";
  }
  return nullptr;
}

}  // namespace

Scheduler::Scheduler(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
                     const base::Clock& clock, std::function<void(const Timing&)> on_batch)
    : clock_(clock), options_(std::move(options)), on_batch_(std::move(on_batch)) {
  base::require(options_.instances >= 1 && options_.limits.max_rows >= 1,
                "a scheduler needs an instance and a row");
  for (int i = 0; i < options_.instances; ++i) {
    instances_.emplace_back([this, model, i] { instance_main(model, i); });
  }
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return ready_ == options_.instances; });
    failure = failure_;
  }
  if (failure) {
    stop();
    std::rethrow_exception(failure);
  }
}

Scheduler::~Scheduler() { stop(); }

void Scheduler::stop() {
  std::vector<Item> left;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    left.swap(queue_);
  }
  for (Item& item : left) {
    refuse(item.request, Ending::refused, base::ErrorCode::unavailable, "the server is shutting down");
  }
  changed_.notify_all();
  for (std::thread& instance : instances_) instance.join();
  instances_.clear();
}

engine::SessionOptions Scheduler::session_options(int index) const {
  engine::SessionOptions session = options_.session;
  if (!options_.pin || options_.cpus.empty()) return session;
  for (int t = 0; t < session.threads; ++t) {
    session.cpus.push_back(
        options_.cpus[static_cast<size_t>(index * session.threads + t) % options_.cpus.size()]);
  }
  return session;
}

/// The session is made on the thread that uses it, so that pinning binds that thread and memory is near it.
void Scheduler::instance_main(const std::shared_ptr<const engine::PreparedModel>& model, int index) {
  std::unique_ptr<engine::Session> session;
  std::unique_ptr<BatchRunner> runner;
  std::exception_ptr failure;
  try {
    session = std::make_unique<engine::Session>(model, session_options(index));
    runner = std::make_unique<BatchRunner>(*session, options_.padding);
    for (const WarmUp& shapes : options_.warm_up) runner->warm_up(shapes);
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    ++ready_;
    if (failure) failure_ = failure;
  }
  idle_.notify_all();
  if (!failure) work(*runner);
}

void Scheduler::submit(Request request) {
  request.timing.enqueued_ns = clock_.now_ns();
  if (const char* reason = misfit(request, options_.padding)) {
    return refuse(request, Ending::failed, base::ErrorCode::invalid_argument, reason);
  }
  const Waiting waiting{.rows = request.rows,
                        .enqueued_ns = request.timing.enqueued_ns,
                        .deadline_ns = request.deadline_ns,
                        .priority = request.priority,
                        .group = group_key(request.inputs, options_.padding)};
  const char* refusal = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      refusal = "the server is shutting down";
    } else if (queue_.size() >= options_.max_queue) {
      refusal = "Exceeds maximum queue size";
    }
    if (refusal != nullptr) {
      ++stats_.refused;
    } else {
      queue_.push_back({std::move(request), waiting});
      ++stats_.accepted;
      // An eighth of the new value: a dozen arrivals decide, one straggler does not.
      concurrency_ += (static_cast<double>(queue_.size() + running_) - concurrency_) / 8;
    }
  }
  if (refusal != nullptr) return refuse(request, Ending::refused, base::ErrorCode::unavailable, refusal);
  changed_.notify_one();
}

Scheduler::Taken Scheduler::take(int64_t now_ns) {
  Taken taken;
  std::erase_if(queue_, [&](Item& item) {
    if (!item.request.cancelled || !item.request.cancelled()) return false;
    taken.cancelled.push_back(std::move(item.request));
    return true;
  });
  std::vector<Waiting> waiting;
  waiting.reserve(queue_.size());
  for (const Item& item : queue_) waiting.push_back(item.waiting);
  BatchLimits limits = options_.limits;
  // Who is usually here is here: waiting longer would cost latency and bring nobody.
  const bool is_complete = static_cast<double>(queue_.size() + running_) >= concurrency_ - 0.5;
  if (closing_ || (options_.is_window_adaptive && is_complete)) limits.window_ns = 0;
  Decision decision = decide(waiting, now_ns, limits, compute_ns_);
  taken.wake_ns = decision.wake_ns;
  if (!decision.take.empty()) {
    const size_t head = decision.take[0];
    std::erase_if(decision.take, [&](size_t i) {
      return !same_group(queue_[i].request.inputs, queue_[head].request.inputs, options_.padding);
    });
  }
  std::vector<bool> leaves(queue_.size(), false);
  const auto move_out = [&](const std::vector<size_t>& list, std::vector<Request>& to) {
    for (size_t i : list) {
      leaves[i] = true;
      to.push_back(std::move(queue_[i].request));
    }
  };
  move_out(decision.take, taken.batch);
  move_out(decision.expired, taken.expired);
  size_t index = 0;
  std::erase_if(queue_, [&](const Item&) { return leaves[index++]; });
  stats_.expired += taken.expired.size();
  stats_.cancelled += taken.cancelled.size();
  return taken;
}

std::vector<Request> Scheduler::next_batch() {
  std::unique_lock lock(mutex_);
  while (true) {
    Taken taken = take(clock_.now_ns());
    if (!taken.empty()) {
      ++busy_;
      if (!taken.batch.empty()) ++stats_.batches;
      running_ += taken.batch.size();
      const bool more = !queue_.empty();
      lock.unlock();
      if (more) changed_.notify_one();  // another instance may take what is left
      for (Request& r : taken.expired) {
        refuse(r, Ending::expired, base::ErrorCode::unavailable, "Request timeout expired");
      }
      for (Request& r : taken.cancelled) {
        refuse(r, Ending::cancelled, base::ErrorCode::unavailable, "the client left");
      }
      if (!taken.batch.empty()) return std::move(taken.batch);
      lock.lock();
      --busy_;
      continue;
    }
    if (queue_.empty() && busy_ == 0) idle_.notify_all();
    if (closing_ && queue_.empty()) return {};
    if (taken.wake_ns == INT64_MAX) {
      changed_.wait(lock);
    } else {
      const std::chrono::steady_clock::time_point wake{std::chrono::nanoseconds(taken.wake_ns)};
      changed_.wait_until(lock, wake);
    }
  }
}

void Scheduler::work(BatchRunner& runner) {
  while (true) {
    std::vector<Request> batch = next_batch();
    if (batch.empty()) return;
    const int64_t start = clock_.now_ns();
    for (Request& r : batch) r.timing.started_ns = start;
    size_t count = batch.size();
    // Before the sinks are called: a client that sends its next request at once must not count itself twice.
    const auto on_batch = [&](const Timing& timing) {
      {
        const std::lock_guard lock(mutex_);
        running_ -= std::exchange(count, 0);
      }
      if (on_batch_) on_batch_(timing);
    };
    runner.run(batch, clock_, on_batch);
    batch.clear();  // requests hold memory of their clients: free it before waiting
    const std::lock_guard lock(mutex_);
    // A quarter of the new value: follows a change of load within a few batches, shrugs off one outlier.
    compute_ns_ += (clock_.now_ns() - start - compute_ns_) / 4;
    running_ -= count;
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
