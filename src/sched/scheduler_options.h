// How a model's scheduler is set up, and what it counts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/machine/halt_polling.h"
#include "base/threads/pause_point.h"
#include "sched/batch.h"
#include "sched/policy/batch_policy.h"
#include "sched/policy/batch_tuner.h"
#include "sched/rate_limiter.h"

namespace trireme::sched {

struct SchedulerOptions {
  BatchLimits limits;
  Padding padding;
  bool is_window_adaptive = false;  ///< the window ends once as many wait as are usually in flight
  bool runs_whole = false;          ///< a batch is as large as may be, whatever its rows cost (see RowPrices)
  size_t max_queue = 1024;          ///< requests waiting; further ones are refused
  std::map<uint32_t, size_t> level_queue = {};  ///< the same for single priorities
  size_t hold_until = 0;           ///< nothing starts before so many wait; for tests that count batches
  int instances = 1;               ///< sessions that run batches side by side
  engine::SessionOptions session;  ///< threads per instance
  bool pin = false;                ///< pins instance i to the i-th group of `cpus`, one for each thread
  std::vector<int> cpus = {};      ///< what pinning hands out, in order
  std::vector<WarmUp> warm_up = {};
  bool is_fair = false;                ///< tenants get shares by weight, of the instances and of the queue
  bool places_rows = false;            ///< requests name their instance and row: slots of sequences
  bool preserves_order = false;        ///< answers leave in the order of requests, level by level
  RateLimiter* limiter = nullptr;      ///< shared with other models; outlives the scheduler; null: no limits
  std::vector<RateClaim> claims = {};  ///< by instance, with a limiter
  std::shared_ptr<base::HaltPolling> halt_polling = {};  ///< told of every batch; null: none
  /// A request expected to take no longer runs at once, on the thread that submits it, where an instance is
  /// idle and nobody waits: handing it over would cost more. 0: none does.
  int64_t inline_ns = 0;
  std::vector<std::string> devices = {};  ///< by instance; empty, or none for it: session.device
  /// Goal of the 99th percentile from queue to result: then window, rows and number of instances are found
  /// while it runs, up to those of limits and instances. 0: they are as they are.
  int64_t p99_ns = 0;
  std::function<void(const BatchTuner::Choice&)> on_tuned = {};  ///< told of every plan
  /// A batch that takes so long, and ten times what was expected, hangs: its requests get `unavailable`, its
  /// run is told to end, and if that was the last instance the queue is refused. 0: nobody looks.
  int64_t hang_ns = 0;
  /// The model has loops, whose rounds may be as many as a request's values say: its runs are told to end
  /// once the clients of all their requests have left, and their loops after loop_ns, with invalid_argument
  /// (0: never).
  bool has_loops = false;
  int64_t loop_ns = 0;
  /// It begins to, or has ended after all; must be quick and not call the scheduler.
  std::function<void(int instance, bool hangs)> on_hang = {};
  base::PausePoint* pause = nullptr;  ///< where the instances' threads are; outlives the scheduler
};

/// Counts since the start; any thread may read them through Scheduler::stats().
struct SchedulerStats {
  size_t waiting = 0;
  uint64_t accepted = 0, refused = 0, expired = 0, cancelled = 0, batches = 0;
  int64_t scratch_bytes = 0;  ///< of all instances
  int hung = 0, paused = 0;   ///< instances whose batch does not end; threads that stand still inside a run
};

}  // namespace trireme::sched
