// The dynamic batcher of one model: a bounded queue in front of instances that run batches.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "sched/batch.h"
#include "sched/dispatcher.h"
#include "sched/scheduler_options.h"

namespace trireme::sched {

/// Instances are threads with a session each; they share the model's packed weights. Requests may come from
/// any thread. The clock must be the machine's for waiting; the policy itself is tested without one.
///
/// What is here owns the threads and runs the batches. Which request goes when: Dispatcher (who is at what),
/// BatchQueue (the rules of the queue), BatchTimes (what is learned).
class Scheduler {
 public:
  /// Returns when every instance has warmed up; throws what an instance's session or warm-up threw. Loops of
  /// the warm-up end after loop_ns, those of values that nobody gave after seconds.
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
  /// Why a run of the warm-up with values that nobody gave (WarmUp::is_made_up) has failed; empty: none has.
  std::string warm_up_problem() const;

 private:
  struct Worker {
    std::thread thread;
    bool has_ended = false;
    int64_t loops_end_ns = 0;  ///< the loops of a run of the warm-up end then; 0: when they are through
  };
  class LoopTime;
  void start(const std::shared_ptr<const engine::PreparedModel>& model);
  int64_t end_loops();
  void work(const std::shared_ptr<const engine::PreparedModel>& model, Instance& instance);
  void warm_up(BatchRunner& runner, Instance& instance, std::vector<WarmUp>& list);
  bool takes_made_up(BatchRunner& runner, Instance& instance, const WarmUp& shapes);
  std::vector<BatchTimes::WarmedUp> measure(BatchRunner& runner, const std::vector<WarmUp>& list) const;
  void run_batch(BatchRunner& runner, Instance& instance, std::vector<Request> batch);
  void run_here(Instance& instance, Request request);

  const base::Clock& clock_;
  const SchedulerOptions options_;
  const std::function<void(const Timing&)> on_batch_;
  const std::unique_ptr<IdleWork> idle_work_;  ///< of kBackgroundPriority; null: it waits in the queue
  Dispatcher dispatcher_;
  mutable std::mutex mutex_;         ///< guards how instances start and end; none other is taken under it
  std::condition_variable changed_;  ///< one is ready, or has ended
  int ready_ = 0;                    ///< instances warmed up or failed
  std::exception_ptr failure_;       ///< of an instance's start
  std::string host_operators_, warm_up_problem_;
  std::vector<Worker> workers_;  ///< by instance; as many from the start to the end
  std::thread keeper_;           ///< runs Dispatcher::keep()
};

}  // namespace trireme::sched
