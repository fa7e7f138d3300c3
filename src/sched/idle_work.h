// Batches of work that may wait: they run in what clients leave, and stand still inside a run when one comes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/threads/pause_point.h"
#include "sched/scheduler.h"

namespace trireme::sched {

/// A scheduler of its own, with the same model and rules, whose runs pause between two steps while the
/// clients' scheduler says so. It is made for the first request, since it has threads, programs and scratch
/// memory beside those for clients. What it computes is never lost, so it takes all that is idle, and a
/// client waits for the end of one step at most. Any thread.
class IdleWork {
 public:
  /// Null where runs cannot pause between steps (devices, ranks), or where a rule of `options` holds for all
  /// requests together (instances shared with other models): BackgroundShare decides there. What is given
  /// outlives it, as for Scheduler.
  static std::unique_ptr<IdleWork> of(const std::shared_ptr<const engine::PreparedModel>& model,
                                      const SchedulerOptions& options, const base::Clock& clock,
                                      const std::function<void(const Timing&)>& on_batch);

  /// A request of kBackgroundPriority, as Scheduler::submit().
  void submit(Request request);
  /// Clients wait or run from now on.
  void hold() { pause_.hold(); }
  /// None does.
  void release() { pause_.release(); }
  /// As those of Scheduler, once no client waits or runs any more.
  void drain();
  bool stop(int64_t patience_ns);
  /// Adds what it has counted.
  void add_to(SchedulerStats& stats) const;

 private:
  IdleWork(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
           const base::Clock& clock, std::function<void(const Timing&)> on_batch);
  Scheduler* opened();

  const std::shared_ptr<const engine::PreparedModel> model_;
  SchedulerOptions options_;
  const base::Clock& clock_;
  const std::function<void(const Timing&)> on_batch_;
  base::PausePoint pause_;
  mutable std::mutex mutex_;
  bool is_closing_ = false;
  std::unique_ptr<Scheduler> scheduler_;  ///< null before the first request
};

}  // namespace trireme::sched
