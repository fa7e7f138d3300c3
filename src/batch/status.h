// Where a job stands and when it will end, from its directory alone: no worker is asked.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text/json.h"
#include "batch/job_history.h"
#include "batch/job_options.h"

namespace trireme::batch {

struct WorkerNow {
  uint64_t worker = 0;
  std::string process;
  double rows_per_s = 0;
  int64_t chunks_done = 0, chunks_held = 0;
};

struct JobStatus {
  JobPast past;
  std::vector<WorkerNow> working;  ///< workers that hold their seats now
  double rows_per_s = 0;           ///< of those together
  /// Seconds until the end; the interval holds it 19 times in 20 if chunks go on to differ as they have.
  /// Negative: nobody works, or nothing is done yet.
  double left_s = -1, least_left_s = -1, most_left_s = -1;
  double since_start_s = 0;
  double cost = 0, cost_at_end = 0;  ///< 0: no price
  std::vector<std::string> goals;    ///< what budget and deadline ask for, in sentences

  std::string text() const;
  base::Json json() const;
};

/// Throws not_found where there is no job.
JobStatus status_of(const JobOptions& options, const base::Clock& clock);

/// What the goals of a job ask for: how many workers the deadline needs, and whether the budget is enough.
std::vector<std::string> goals_of(const JobOptions& options, const JobStatus& status);

/// How many workers like those so far would be done in time; as many as there are chunks where that has
/// passed. 0: there is no deadline, or nothing is known yet.
int64_t workers_for_deadline(const JobOptions& options, const JobStatus& status);

/// "3 h 12 min", "41 s".
std::string duration_text(double seconds);

}  // namespace trireme::batch
