// Workers of one machine: processes that share a job, and the machine's cores.
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "batch/job_options.h"
#include "cli/launch_job.h"

namespace trireme::cli {

/// Starts options.workers processes of this program; with a deadline one, and as many more as it turns out to
/// need. One that a signal killed is started again, a few times.
class LocalWorkers {
 public:
  /// `words` of `trireme batch`, which each worker runs with its share of the threads.
  LocalWorkers(const batch::JobOptions& options, std::span<const std::string> words, base::Env& env);

  /// Until none works any more; gives the exit code of all: 0 where the job is done, else the one that ended
  /// it. A signal is passed on to all workers, and a second one ends them. `meanwhile` is called some times a
  /// second.
  int run(HeldSignals& signals, const std::function<void()>& meanwhile);

 private:
  struct Child {
    pid_t process = 0;
    int number = 0;  ///< of the worker, from 0
  };
  std::vector<std::string> line_of(int number) const;
  void start_missing(const HeldSignals& signals);
  void reap();
  void take_end(const Child& child, int status);
  void send(int signal) const;
  void look_at_deadline();
  void unless_lost(const std::function<void()>& look) const;

  const batch::JobOptions& options_;
  std::vector<std::string> words_;
  base::Env& env_;
  int wanted_;  ///< workers
  std::vector<Child> running_;
  bool is_done_ = false, stops_ = false;
  int code_ = 0;      ///< of who ended without the job being done; the gravest
  int restarts_ = 0;  ///< of workers that were killed
  int64_t looked_ns_ = 0;
};

}  // namespace trireme::cli
