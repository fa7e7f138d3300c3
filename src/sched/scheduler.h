// The dynamic batcher of one model: a bounded queue in front of instances that run batches.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "sched/batch.h"
#include "sched/batch_policy.h"

namespace trireme::sched {

struct SchedulerOptions {
  BatchLimits limits;
  Padding padding;
  size_t max_queue = 1024;           ///< requests waiting; further ones are refused
  int instances = 1;                 ///< sessions that run batches side by side
  engine::SessionOptions session;    ///< threads per instance
  bool pin = false;                  ///< pins instance i to its own cores
};

/// Counts since the start; any thread may read them through Scheduler::stats().
struct SchedulerStats {
  size_t waiting = 0;
  uint64_t accepted = 0, refused_full = 0, expired = 0, cancelled = 0, batches = 0;
};

/// Instances are threads with a session each; they share the model's packed weights. Requests may come from any
/// thread. The clock must be the machine's for waiting; the policy itself is tested without one.
class Scheduler {
 public:
  /// `on_batch` (may be empty) is told rows and padded rows of each batch, on the instance's thread.
  Scheduler(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options, const base::Clock& clock,
            std::function<void(int64_t rows, int64_t padded)> on_batch = {});
  /// Refuses what still waits and joins the instances.
  ~Scheduler();

  /// Compiles and runs every row bucket (and length bucket) on every instance. `example` has one row.
  void warm_up(const std::vector<tensor::Tensor>& example);

  /// Queues a request; its sink is called exactly once. Where the queue is full or closing, the sink gets
  /// `unavailable` before submit returns.
  void submit(Request request);
  /// Stops accepting, runs what waits, returns when all instances are idle.
  void drain();
  SchedulerStats stats() const;

 private:
  struct Instance;
  struct Item {
    Request request;
    Waiting waiting;
  };
  void work(Instance& instance);
  /// Takes the next batch out of the queue, or waits; empty means closing and nothing left. Calls sinks of the expired.
  std::vector<Request> next_batch();
  void refuse(Request& request, const char* message);

  const base::Clock& clock_;
  const SchedulerOptions options_;
  std::function<void(int64_t, int64_t)> on_batch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::vector<Item> queue_;          ///< in order of arrival
  bool closing_ = false;
  int busy_ = 0;
  SchedulerStats stats_;
  int64_t compute_ns_ = 0;           ///< smoothed time of a batch
  std::vector<std::unique_ptr<Instance>> instances_;
};

}  // namespace trireme::sched
