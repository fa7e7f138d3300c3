// The bounded queue of one model: who may wait, who leaves, and which requests form the next batch.
#pragma once

#include <vector>

#include "sched/batch_times.h"
#include "sched/ordered_release.h"
#include "sched/policy/client_load.h"
#include "sched/policy/fair_share.h"
#include "sched/refuse.h"
#include "sched/scheduler_options.h"
#include "sched/waiting_queue.h"

namespace trireme::sched {

/// The next batch of an instance, or when to ask again; and who leaves the queue on the way.
struct Taken {
  std::vector<Request> batch;
  Leaving leaving;
  int64_t wake_ns = INT64_MAX;
  int64_t until_ns = 0;  ///< predicted end of the batch
  bool is_ripe = false;  ///< a batch would go now if the instance had leave to run
  bool empty() const { return batch.empty() && leaving.empty(); }
};

/// All rules about requests that wait: bounds, evictions, deadlines, shares of tenants, what may share a
/// batch, when work that may wait goes. Has no thread and no clock; not for several threads at once.
class BatchQueue {
 public:
  /// What is given outlives it; `stats` counts those that leave unrun.
  BatchQueue(const SchedulerOptions& options, const BatchTimes& times, const ClientLoad& load,
             SchedulerStats& stats);

  /// Why a request cannot be queued, or null; who makes room for it leaves. An instance is free from
  /// `free_ns` on. Sets what `waiting` costs, where it stands among the tenants, and whether it is a trial.
  const char* refusal_of(Waiting& waiting, int64_t free_ns, Leaving& leaving);
  /// Whether a request is cheaper run by the thread that brings it than handed over, if an instance is idle.
  bool may_skip(const Waiting& waiting) const;
  void push(Request&& request, const Waiting& waiting);

  /// For an idle instance. `may_run` false: it lacks leave to run, and only what leaves is taken.
  Taken take(int64_t now_ns, bool may_run, int instance);
  /// Looks through a slice of the queue for who left or is too late.
  void sweep(int64_t now_ns, Leaving& leaving);
  /// When the next sweep is worth its while.
  int64_t next_sweep_ns() const { return queue_.next_sweep_ns(); }
  std::vector<Request> take_all() { return queue_.take_all(); }
  /// All that must be run by this instance.
  std::vector<Request> take_of_instance(int instance) { return queue_.take_of_instance(instance); }

  size_t size() const { return queue_.size(); }
  bool empty() const { return queue_.empty(); }
  /// Those of clients, without work that may wait.
  size_t clients() const { return queue_.size() - queue_.of_level(kBackgroundPriority); }

  /// Nobody is let in from now on, and nothing is waited for.
  void close() { is_closing_ = true; }
  bool is_closing() const { return is_closing_; }

 private:
  bool make_room(const Waiting& waiting, Leaving& leaving);
  WaitingQueue::View view(int instance, int64_t max_rows, Leaving& leaving);
  void choose(Taken& taken, int64_t now_ns, bool may_run, int instance);
  void move_out(Decision& decision, const WaitingQueue::View& seen, Taken& taken);

  const SchedulerOptions& options_;
  const BatchTimes& times_;
  const ClientLoad& load_;
  SchedulerStats& stats_;
  WaitingQueue queue_;
  FairShare shares_;
  OrderedRelease order_;
  bool is_held_;  ///< until hold_until requests wait
  bool is_closing_ = false;
};

}  // namespace trireme::sched
