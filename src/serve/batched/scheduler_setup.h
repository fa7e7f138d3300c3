// How a batched model's scheduler is set up: by its configuration, its parameters and the server's options.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "sched/scheduler.h"
#include "serve/batched/batched_parts.h"

namespace trireme::serve {

/// Throws invalid_argument for what does not go together.
sched::SchedulerOptions scheduler_options(const ModelSource& source, const BatchedParts& parts,
                                          const ModelHost& host);
/// Of a configuration with sequence_batching.
SequenceBatcher::Options sequence_options(const ModelConfig& config, const ServeOptions& options);

/// What a scheduler finds out by itself, as metrics and in the log. Outlives the scheduler.
class SchedulerWatch {
 public:
  SchedulerWatch(std::string name, std::string version, const base::Env& env)
      : name_(std::move(name)), version_(std::move(version)), env_(env) {}
  ~SchedulerWatch();
  SchedulerWatch(const SchedulerWatch&) = delete;
  SchedulerWatch& operator=(const SchedulerWatch&) = delete;

  void attach(sched::SchedulerOptions& out, MetricRegistry& metrics);

 private:
  /// Instances of this load whose batches do not end, as the gauge of all loads has them.
  struct Hung {
    MetricGauge* gauge;
    std::atomic<int> instances{0};
  };
  const std::string name_, version_;
  const base::Env env_;
  std::shared_ptr<Hung> hung_;  ///< null: nobody looks
};

}  // namespace trireme::serve
