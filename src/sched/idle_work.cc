// Batches of background work.
#include "sched/idle_work.h"

#include <algorithm>
#include <utility>

#include "sched/current_error.h"

namespace trireme::sched {
namespace {

void refuse(const Request& request, base::Error error) {
  request.sink(
      {.outputs = {}, .error = std::move(error), .ending = Ending::refused, .timing = request.timing});
}

/// Removes options that concern clients only: windows, goals, queues by level, the watch for hung batches
/// (paused ones take long, and so do their loops), pinning to processors.
SchedulerOptions without_clients(SchedulerOptions options) {
  options.limits.window_ns = 0;
  options.limits.preferred.clear();
  options.is_window_adaptive = false;
  options.level_queue.clear();
  options.hold_until = 0;
  options.pin = false;
  options.cpus.clear();
  options.warm_up.clear();
  options.preserves_order = false;
  options.halt_polling = nullptr;
  options.inline_ns = 0;
  options.p99_ns = 0;
  options.on_tuned = {};
  options.hang_ns = options.loop_ns = 0;
  options.on_hang = {};
  return options;
}

}  // namespace

std::unique_ptr<IdleWork> IdleWork::of(const std::shared_ptr<const engine::PreparedModel>& model,
                                       const SchedulerOptions& options, const base::Clock& clock,
                                       const std::function<void(const Timing&)>& on_batch) {
  const bool can_pause = options.session.device == "cpu" && options.session.strategy.world() == 1 &&
                         std::all_of(options.devices.begin(), options.devices.end(),
                                     [](const std::string& d) { return d.empty() || d == "cpu"; });
  const bool is_alone = options.limiter == nullptr && !options.places_rows;
  if (!can_pause || !is_alone || options.pause != nullptr) return nullptr;
  return std::unique_ptr<IdleWork>(new IdleWork(model, without_clients(options), clock, on_batch));
}

IdleWork::IdleWork(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
                   const base::Clock& clock, std::function<void(const Timing&)> on_batch)
    : model_(std::move(model)), options_(std::move(options)), clock_(clock), on_batch_(std::move(on_batch)) {
  options_.pause = &pause_;
}

/// Null once it closes. The scheduler lives as long as this object, so it may be used without the lock.
Scheduler* IdleWork::opened() {
  const std::lock_guard lock(mutex_);
  if (is_closing_) return nullptr;
  if (scheduler_ == nullptr) scheduler_ = std::make_unique<Scheduler>(model_, options_, clock_, on_batch_);
  return scheduler_.get();
}

void IdleWork::submit(Request request) {
  Scheduler* scheduler = nullptr;
  try {
    scheduler = opened();
  } catch (...) {
    return refuse(request, current_error());
  }
  if (scheduler == nullptr)
    return refuse(request, base::Error(base::ErrorCode::unavailable, "the server is shutting down"));
  request.priority = 0;  // there are no other levels here
  scheduler->submit(std::move(request));
}

void IdleWork::drain() {
  Scheduler* scheduler = nullptr;
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    scheduler = scheduler_.get();
  }
  if (scheduler != nullptr) scheduler->drain();
}

bool IdleWork::stop(int64_t patience_ns) {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  release();
  return scheduler_ == nullptr || scheduler_->stop(patience_ns);
}

void IdleWork::add_to(SchedulerStats& stats) const {
  SchedulerStats own;
  {
    const std::lock_guard lock(mutex_);
    if (scheduler_ == nullptr) return;
    own = scheduler_->stats();
  }
  stats.waiting += own.waiting;
  stats.accepted += own.accepted;
  stats.refused += own.refused;
  stats.expired += own.expired;
  stats.cancelled += own.cancelled;
  stats.batches += own.batches;
  stats.scratch_bytes += own.scratch_bytes;
  stats.paused += pause_.waiting();
}

}  // namespace trireme::sched
