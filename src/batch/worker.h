// One worker of a job: takes chunks, runs their rows through the model, writes and commits them until none is
// left.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/report/env.h"
#include "batch/chunk_desk.h"
#include "batch/chunk_files.h"
#include "batch/job_options.h"
#include "batch/piece_line.h"
#include "batch/row_model.h"
#include "batch/stage_trace.h"
#include "batch/state/manifest.h"

namespace trireme::batch {

/// What a worker shows while it runs.
struct Progress {
  int64_t chunks = 0, chunks_done = 0;  ///< of the job, by all workers
  int64_t rows = 0, rows_done = 0, errors = 0, bytes = 0;
  double rows_per_s = 0;      ///< of this worker, over the last seconds
  double job_rows_per_s = 0;  ///< of all workers, by what they committed
  double busy = 0;     ///< share of the time that the model's instances computed, over the last seconds
  double left_s = -1;  ///< until the end; negative: not known yet
};

struct WorkerHooks {
  /// A reason to stop, for example "SIGTERM"; empty: none. Asked some times a second by the worker's thread.
  std::function<std::string()> stop_reason = [] { return std::string(); };
  /// Called about once a second by the worker's thread.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  /// Called at the places where a test ends the process: "taken", "read", "written", "sealed", "published",
  /// "committed".
  std::function<void(std::string_view place)> at = [](std::string_view) {};
};

struct WorkerEnd {
  bool all_done = false;
  std::string reason;  ///< why it stopped before
};

/// What a worker is made of. The referents outlive it.
struct WorkerParts {
  const JobOptions& options;
  const Manifest& manifest;
  const OutputForm& form;
  ChunkDesk& desk;
  RowModel& model;
  StageTrace& trace;
  base::Env env;
};

/// Reading, the model and writing go on side by side: the model has the rows of the next chunk while one is
/// committed. Memory is bounded by the rows in the line.
class Worker {
 public:
  Worker(const WorkerParts& parts, WorkerHooks hooks);

  /// Runs until every chunk of the job is done, by whomever, or it is told to stop. A full disk and a lost
  /// store are waited for, up to options.patience. Throws what ends the job: changed input, too many failed
  /// rows, a model that can answer nothing. Whatever happens, chunks that are not committed are free for
  /// others.
  WorkerEnd run();

 private:
  struct Pass;
  void pass();
  void read_chunks(PieceLine& line);
  bool all_done() const;
  bool waits_for_others(PieceLine& line) const;
  bool read_chunk(PieceLine& line, const std::shared_ptr<ChunkWork>& work);
  void write_items(Pass& pass);
  bool take_item(Pass& pass, const LineItem& item);
  void write_piece(Pass& pass, const LineItem& item);
  void commit(Pass& pass, ChunkWork& work);
  bool finishes_in_time(int64_t rows) const;
  bool wait_out(int64_t ns);
  void look_at_signals();
  void show_progress();
  bool is_late() const;
  std::shared_ptr<const data::RowFile> input(uint32_t file);

  WorkerParts parts_;
  WorkerHooks hooks_;
  std::vector<std::string> columns_;  ///< that are read
  uint32_t open_file_ = UINT32_MAX;   ///< the reader's thread only
  std::shared_ptr<const data::RowFile> open_input_;

  std::atomic<bool> stops_{false};
  std::atomic<int64_t> stop_by_ns_{INT64_MAX};
  std::atomic<int64_t> rows_written_{0}, commits_{0};
  std::string reason_;
  int64_t begin_ns_ = 0, last_look_ns_ = 0, last_commit_ns_ = 0;
  ModelUse last_use_;
  int64_t last_retried_ = 0;

  struct Sample {
    int64_t at_ns = 0, written = 0, job_rows = 0, busy_ns = 0;
  };
  std::deque<Sample> samples_;  ///< about one a second, of the last minute
};

}  // namespace trireme::batch
