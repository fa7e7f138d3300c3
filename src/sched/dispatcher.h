// Who does what among the threads of one model: requests come in at one side, instances take batches at the
// other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/run_stop.h"
#include "sched/alarm.h"
#include "sched/batch_queue.h"
#include "sched/batch_times.h"
#include "sched/batch_watch.h"
#include "sched/policy/client_load.h"
#include "sched/rate_lease.h"
#include "sched/scheduler_options.h"

namespace trireme::sched {

class IdleWork;

/// What the dispatcher knows of one instance. Its mutex guards everything but `stop`.
struct Instance {
  int index = 0;
  engine::RunStop stop;           ///< its session looks at it
  BatchRunner* runner = nullptr;  ///< of its thread; null where only that thread may use it
  int64_t scratch_bytes = 0;      ///< of its session
  bool is_taken = false;          ///< by a thread that submits
  bool is_background = false;     ///< its batch is of kBackgroundPriority
  int64_t busy_until_ns = 0;      ///< predicted; 0: idle
  int busy_at_start = 1;          ///< instances at work when its batch began, with it
  BatchWatch watch;
  RateLease lease;
};

/// The monitor between those who submit, the instances' threads and the keeper: one mutex guards the queue,
/// what is learned, and what each instance is at. Sinks, callbacks of the options (but on_hang) and models
/// are called without it. Order of locks: a rate limiter's, then this one; IdleWork's pause point takes none.
class Dispatcher {
 public:
  /// What is given outlives it; `idle_work` may be null.
  Dispatcher(const SchedulerOptions& options, const base::Clock& clock, IdleWork* idle_work);

  Instance& instance(int index) { return instances_[static_cast<size_t>(index)]; }
  /// Joins the rate limiter, if there is one. Throws for needs that can never be met.
  void open_lease(Instance& instance);
  struct Opened {
    BatchRunner& runner;
    bool may_share = false;  ///< other threads may use the runner while the instance is idle
    std::vector<BatchTimes::WarmedUp> measured = {};
  };
  /// The instance is warm and will ask for batches.
  void opened(Instance& instance, const Opened& how);

  /// Queues or refuses a request, whose time of arrival is set; or gives the instance on which the calling
  /// thread is to run it now. Then the request is untouched, and ran_here() and told_here() follow.
  Instance* submit(Request& request);
  /// For an instance's thread: its next batch, once there is one. Empty: closing and nothing left.
  std::vector<Request> next_batch(Instance& instance);

  /// A batch is going to run: its times are learned from and watched where the options ask for that.
  /// `is_again`: one request of a batch that has begun is going to run alone, with limits of its own.
  void begins(Instance& instance, std::span<const Request> batch, uint64_t group, bool is_again = false);
  struct Computed {
    std::span<const Request> batch;
    size_t ended = 0;  ///< requests that run no more
    uint64_t group = 0;
    bool is_typical = true;  ///< all ran at once and undisturbed: times are learned from
    int64_t scratch_bytes = 0;
  };
  /// Results are there, no sink has been told yet. True: the instance had been given up as hung.
  bool computed(Instance& instance, const Timing& timing, const Computed& what);
  /// Sinks have been told of a whole, undisturbed batch that was taken at `started_ns`.
  void ran(const Instance& instance, uint64_t group, int64_t padded_rows, int64_t started_ns);
  /// The instance is free again; `still_running` requests of its batch were never computed().
  void finish(Instance& instance, size_t still_running);
  /// A request of submit() ran, `timing` is null if the model failed: the instance is free. True: it had been
  /// given up as hung. If it throws for want of memory, nothing has changed: to be called again with null.
  bool ran_here(Instance& instance, uint64_t group, const Timing* timing);
  /// Its sink has been told; `had_hung` as ran_here() said.
  void told_here(bool had_hung);

  /// The keeper's thread: refuses who is late while all instances are busy, gives up batches that hang, and
  /// plans for the goal, until all is closed and done. It sleeps for as long as there is nothing to look for:
  /// a model that nobody asks costs no wake-up.
  void keep();
  /// Lets nobody in any more, and refuses all that wait.
  void close();
  /// Lets nobody in any more; returns once nothing waits and nothing runs but what hangs.
  void drain();
  SchedulerStats stats() const;

 private:
  // With the lock held; those that are given it release it for a while:
  const char* refusal_of(const Request& request, Waiting& waiting, Leaving& leaving);
  Instance* take_instance(const Waiting& waiting, std::unique_lock<std::mutex>& lock);
  bool end_watch(Instance& instance);
  void refuse_late(std::unique_lock<std::mutex>& lock);
  void end_runs(std::unique_lock<std::mutex>& lock);
  int64_t next_look_ns(int64_t now_ns) const;
  bool is_everybody_busy() const;
  void tell_if_idle();
  void wake_instance();  // needs no lock

  const base::Clock& clock_;
  const SchedulerOptions& options_;
  IdleWork* const idle_work_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, idle_;  ///< there may be a batch to take; nothing waits or runs
  Alarm alarm_;                             ///< of the keeper
  SchedulerStats stats_;
  ClientLoad load_;
  BatchTimes times_;
  BatchQueue queue_;
  std::vector<Instance> instances_;  ///< as many from the start to the end
  int busy_ = 0;                     ///< threads with a batch or refusals in hand
  bool looks_often_ = false;         ///< the keeper: a batch since it looked last may have to end early
  std::atomic<uint32_t> ended_{0};   ///< batches, for those who wait a moment for an instance
};

}  // namespace trireme::sched
