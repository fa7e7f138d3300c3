// A batch worker's port for people and scrapers: /metrics, /status.json, and a page at /.
#pragma once

#include <memory>

#include "base/report/env.h"
#include "batch/job_options.h"
#include "batch/worker.h"

namespace trireme::cli {

/// Serves from its own threads until it is destroyed.
class JobPort {
 public:
  /// On 127.0.0.1. `options` and what `env` refers to outlive it.
  JobPort(int port, const batch::JobOptions& options, const base::Env& env);
  ~JobPort();

  /// What the gauges of /metrics say from now on.
  void set(const batch::Progress& progress);

 private:
  struct Served;
  std::unique_ptr<Served> served_;
};

}  // namespace trireme::cli
