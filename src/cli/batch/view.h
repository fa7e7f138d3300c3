// What people and scrapers see of a batch job's worker while it runs: a line, log lines, /metrics, its goals.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/report/env.h"
#include "base/text/options.h"
#include "batch/job_options.h"
#include "batch/status.h"
#include "batch/worker.h"
#include "cli/batch/job_port.h"

namespace trireme::cli {

struct BatchViewOptions {
  bool quiet = false;
  int metrics_port = 0;

  void fields(base::OptionList& f) {
    f.add("quiet", &quiet, "no progress");
    f.add("metrics_port", &metrics_port,
          "serve a page, /metrics and /status.json on this port of 127.0.0.1; 0: do not")
        .at_least(0)
        .at_most(65535);
  }
};

/// Shown by the worker's thread; scraped from others.
class BatchView {
 public:
  BatchView(const BatchViewOptions& view, const batch::JobOptions& options, base::Env& env);
  ~BatchView();
  BatchView(const BatchView&) = delete;
  BatchView& operator=(const BatchView&) = delete;

  void show(const batch::Progress& progress);
  /// The same of the job as its directory has it, for who is no worker; nothing before there is a manifest.
  void show_status();
  /// Ends the line.
  void finish();
  /// Before this worker has begun: the job has cost what it may already.
  bool was_budget_spent();
  /// The job has cost what it may.
  bool is_budget_spent() const { return is_budget_spent_; }

 private:
  void look_at_goals();
  bool is_spent(const batch::JobStatus& status) const;
  void write_line(const batch::Progress& progress);

  BatchViewOptions view_;
  const batch::JobOptions& options_;
  base::Env& env_;
  bool is_terminal_, has_line_ = false, has_told_goals_ = false;
  std::atomic<bool> is_budget_spent_{false};
  int64_t last_log_ns_ = 0, last_goal_ns_ = 0, last_show_ns_ = 0;
  std::unique_ptr<JobPort> port_;
};

}  // namespace trireme::cli
