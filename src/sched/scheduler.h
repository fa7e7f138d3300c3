// The dynamic batcher of one model: a bounded queue in front of instances that run batches.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/machine/halt_polling.h"
#include "base/threads/pause_point.h"
#include "sched/background_share.h"
#include "sched/batch.h"
#include "sched/batch_cost.h"
#include "sched/batch_policy.h"
#include "sched/batch_tuner.h"
#include "sched/fair_share.h"
#include "sched/ordered_release.h"
#include "sched/rate_limiter.h"
#include "sched/row_prices.h"
#include "sched/waiting_queue.h"

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

/// Instances are threads with a session each; they share the model's packed weights. Requests may come from
/// any thread. The clock must be the machine's for waiting; the policy itself is tested without one.
class Scheduler {
 public:
  /// Returns when every instance has warmed up; throws what an instance's session or warm-up threw.
  /// `on_batch` (may be empty) is told of each batch that succeeded, on the instance's thread, before its
  /// sinks.
  Scheduler(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
            const base::Clock& clock, std::function<void(const Timing&)> on_batch = {});
  /// Refuses what still waits and joins the instances; waits for ever for one that stop() has given up.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Queues a request, or runs it here (see inline_ns); its sink is called exactly once, maybe before submit
  /// returns. Where the queue is full or closing, it gets `unavailable`.
  void submit(Request request);
  /// Stops accepting, runs what waits, returns when all instances are idle or hang.
  void drain();
  /// Like the destructor, but gives an instance that hangs up after `patience_ns`. False: one did not end,
  /// its thread is detached, and this object must be left where it is for as long as the program runs.
  bool stop(int64_t patience_ns);
  SchedulerStats stats() const;
  /// Operators that the instances' devices have no kernel for, of programs that the warm-up compiled.
  std::string host_operators() const;

 private:
  /// Requests that leave the queue: to run, or to be told why not.
  struct Taken {
    std::vector<Request> batch, expired, hopeless, cancelled, evicted;
    int64_t wake_ns = INT64_MAX;
    int64_t until_ns = 0;  ///< predicted end of the batch
    bool is_ripe = false;  ///< a batch would go now if the instance had leave to run
    bool empty() const {
      return batch.empty() && expired.empty() && hopeless.empty() && cancelled.empty() && evicted.empty();
    }
  };
  /// Who waits for a request that runs: the watchdog may answer in the run's place.
  struct Unanswered {
    Sink sink;
    Timing timing;
  };
  struct Instance {
    std::thread thread;
    std::atomic<bool> stop{false};  ///< its session looks at it
    bool is_hung = false, has_ended = false;
    int64_t hangs_at_ns = 0;    ///< when the batch in hand counts as hung; 0: none is watched
    int64_t useless_at_ns = 0;  ///< when nobody wants its answers any more: then it is told to end; 0: never
    std::vector<Unanswered> unanswered;  ///< of that batch
    int busy_at_start = 1;               ///< instances at work when it began, with it
    int64_t busy_until_ns = 0;           ///< predicted; 0: idle
    uint64_t claim = 0;                  ///< its number at the limiter
    enum class Leave : uint8_t { none, asked, granted } leave = Leave::none;
    int64_t scratch_bytes = 0;      ///< of its session
    BatchRunner* runner = nullptr;  ///< of its thread; null where only that thread may use it
    bool is_taken = false;          ///< by a thread that submits
    bool is_background = false;     ///< its batch is of kBackgroundPriority
  };
  void start(const std::shared_ptr<const engine::PreparedModel>& model);
  void instance_main(const std::shared_ptr<const engine::PreparedModel>& model, int index);
  engine::SessionOptions session_options(int index) const;
  void claim_resources();
  void measure(BatchRunner& runner);
  void refuse_queue(const char* reason);
  void watch_batch(Instance& instance, std::vector<Request>& batch, uint64_t group);
  void end_watch(Instance& instance);
  void run_keeper();
  void keep_plan(std::unique_lock<std::mutex>& lock);
  void keep_watch(std::unique_lock<std::mutex>& lock);
  void keep_queue(std::unique_lock<std::mutex>& lock);
  void work(BatchRunner& runner, Instance& instance);
  void run_batch(BatchRunner& runner, Instance& instance, std::vector<Request> batch);
  void run_here(Instance& instance, Request request);
  bool is_for_here(const Waiting& waiting) const;
  Instance* take_instance(const Waiting& waiting, std::unique_lock<std::mutex>& lock);
  /// Takes the next batch out of the queue, or waits; empty means closing and nothing left.
  std::vector<Request> next_batch(Instance& instance);
  void answer_unrun(Taken& taken);
  void finish_batch(Instance& instance, size_t still_running);
  bool settle_leave(Instance& instance, bool is_ripe, std::unique_lock<std::mutex>& lock);
  void wait(int64_t wake_ns, std::unique_lock<std::mutex>& lock);
  void wake_one();
  // With the lock held:
  BatchLimits limits(int64_t now_ns) const;
  void learn_from(const Timing& timing, uint64_t group);
  bool is_active(const Instance& instance) const;
  Taken take(int64_t now_ns, bool may_run, const Instance& instance);
  void choose(Taken& taken, int64_t now_ns, bool may_run, const Instance& instance);
  WaitingQueue::View view(const Instance& instance, int64_t max_rows, Taken& leaving);
  double cost_of(const Waiting& waiting) const;
  bool make_room(const Waiting& waiting, Taken& leaving);
  int64_t predict(uint64_t group, int64_t rows) const;
  const char* refusal_of(const Request& request, Waiting& waiting, Taken& leaving);
  void sweep(int64_t now_ns, Taken& leaving);
  int64_t next_look_ns(int64_t now_ns) const;
  void wake_keeper(int64_t by_ns);
  bool is_everybody_busy() const;
  void tell_if_idle();

  const base::Clock& clock_;
  const SchedulerOptions options_;
  const std::function<void(const Timing&)> on_batch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, idle_, keep_;
  WaitingQueue queue_;
  bool closing_ = false;
  size_t running_ = 0;  ///< requests in batches now
  ClientLoad load_;
  int busy_ = 0;                ///< instances with a batch or refusals in hand
  int ready_ = 0;               ///< instances warmed up or failed
  std::exception_ptr failure_;  ///< of an instance's start
  std::string host_operators_;
  SchedulerStats stats_;
  BatchCost cost_;
  FairShare shares_;
  BatchCost compute_;  ///< the same without the sinks, where requests may run on the thread that submits
  RowPrices prices_;
  OrderedRelease order_;
  BatchTuner tuner_;
  bool has_deadlines_ = false;                 ///< of a batch since the keeper looked: then it looks often
  bool is_held_ = false;                       ///< until hold_until requests wait
  std::atomic<uint32_t> ended_{0};             ///< batches, for those who wait a moment for an instance
  std::vector<Instance> instances_;            ///< as many from the start to the end
  std::thread keeper_;                         ///< plans, watches, and lets go who is late while all are busy
  std::unique_ptr<class IdleWork> idle_work_;  ///< of kBackgroundPriority; null: it waits in the queue
  int64_t keeper_wakes_ns_ = 0;                ///< when it looks again without being woken; 0: it is at it
};

}  // namespace trireme::sched
