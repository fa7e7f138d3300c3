// What a job's journal tells of its past: workers, rates, costs, and where the time went.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "batch/state/job_directory.h"
#include "batch/state/manifest.h"
#include "batch/state/record.h"

namespace trireme::batch {

/// One worker's part.
struct WorkerPast {
  std::string process;   ///< "machine:process"
  std::string ended;     ///< its last word; empty: it has not said one
  int64_t begin_ns = 0;  ///< its own machine's wall clock
  int64_t last_ns = 0;   ///< of its last record
  int64_t chunks = 0, rows = 0, errors = 0;
  Effort effort;

  double seconds() const { return static_cast<double>(last_ns - begin_ns) / 1e9; }
  /// Rows a second over the chunks that it committed; 0: none yet.
  double rows_per_s() const;
};

/// What the first chunks of a job (a twentieth of them) foretold of all.
struct Foretold {
  int64_t chunks = 0, rows = 0, elapsed_ns = 0;

  double seconds_per_row() const;  ///< 0: no chunk is done
};

/// Sums over the journal; memory grows with the number of workers alone.
struct JobPast {
  int64_t chunks = 0, chunks_done = 0;
  int64_t rows = 0;       ///< of the input
  int64_t rows_done = 0;  ///< answered or failed
  int64_t errors = 0, bytes = 0, given_back = 0;
  Effort effort;
  int64_t last_ns = 0;  ///< of the last record, by its worker's wall clock
  std::map<uint64_t, WorkerPast> workers;
  Foretold foretold;
  /// Seconds a row: the mean over all rows, and the spread of chunks around it, by their rows, relative to
  /// it.
  double seconds_per_row = 0, spread = 0;

  double worker_seconds() const;
  /// Every row failed.
  bool has_no_answer() const { return errors > 0 && errors == rows; }
};

JobPast read_past(const JobDirectory& directory, const Manifest& manifest);

/// A part of the workers' time. Stages run side by side: they do not add up to all of it.
struct Stage {
  std::string_view name;
  int64_t ns = 0;
  double share = 0;
};
std::vector<Stage> stages_of(const Effort& effort);

enum class Bottleneck { unknown, model, reading, writing, front };

/// The slowest stage of this work.
Bottleneck bottleneck_of(const Effort& effort);
/// Its name, and in a sentence which option would help.
std::string_view name_of(Bottleneck bottleneck);
std::string advice_for(Bottleneck bottleneck, const Effort& effort);
/// Share of the time that the model's instances computed.
double busy_share(const Effort& effort);

}  // namespace trireme::batch
