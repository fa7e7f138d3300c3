// What a run tells: a line of JSON per step, TensorBoard scalars, and a progress line for people.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "base/text/json.h"
#include "base/text/options.h"
#include "train/files/append_file.h"
#include "train/report/tensorboard.h"

namespace trireme::train {

/// Section `log` of a run's configuration.
struct LogOptions {
  base::Duration progress{5 * base::kNsPerSecond};
  bool jsonl = true;
  bool tensorboard = true;
  bool report = true;
  int64_t every = 1;
  void fields(base::OptionList& f);
};

/// One step as it went.
struct StepRecord {
  int64_t step = 0;      ///< from 1: steps begun, skipped ones included
  double epoch = 0;      ///< fraction of passes over the data so far
  int64_t samples = 0;   ///< consumed so far, all epochs
  int64_t targets = 0;   ///< valid targets of this step
  double loss = 0;       ///< mean over them
  double accuracy = -1;  ///< share predicted right; negative: the model does not say
  double lr = 0;
  double grad_norm = 0;  ///< before clipping
  bool skipped = false;
  double loss_scale = 1;
  double data_wait_ms = 0, forward_ms = 0, backward_ms = 0, update_ms = 0;
  double communication_ms = 0;  ///< in collectives; 0 on one rank
  double exposed_ms = 0;        ///< of it, while the computation stood still
  double bubble = -1;           ///< share of the micro-batches' time that pipeline stages wait; -1: no stages
  double expected_bubble = -1;  ///< the same by the schedule with the measured times of work
  double step_ms = 0;           ///< wall time, all of the above and what lies between
  double samples_per_s = 0;
  double mfu = -1;  ///< model flop utilisation; negative: unknown
};

base::Json to_json(const StepRecord& r);

/// Figures of one evaluation.
struct EvalRecord {
  int64_t step = 0;
  int64_t targets = 0;
  double loss = 0;
  double accuracy = -1;
  double rank_correlation = -2;  ///< of predicted and wanted similarities (Spearman); -2: not measured
  double seconds = 0;
};

/// What a run that ended before its time had done after the checkpoint that it goes on from, as far as its
/// log tells: steps to be done again.
struct LostWork {
  int64_t steps = 0;
  double seconds = 0;       ///< spent on them
  double down_seconds = 0;  ///< from the log's last line until now
};
LostWork work_after(const std::string& log, int64_t step, int64_t wall_ns);

/// Owner thread only. Files live in the run directory: log.jsonl, tensorboard/.
class RunLog {
 public:
  /// `resumed_step` > 0: lines of later steps, which a run that died had written, are taken out first.
  RunLog(const LogOptions& options, const std::string& directory, int64_t resumed_step, base::Env env);

  /// An event of its own kind: {"event": name, ...fields}.
  void event(const std::string& name, base::Json fields);
  void step(const StepRecord& record);
  void eval(const EvalRecord& record);
  /// Prints the line if it is due or `force`. `done` and `total` count steps; the time left goes by the rate
  /// since the start of this process.
  void progress(const StepRecord& record, int64_t total_steps, bool force);
  /// Puts everything logged so far into the files; done by itself every half second, and by every event.
  void flush();
  /// Ends a line that the terminal still shows.
  void end_line();

 private:
  void tell_errors();
  void flush_if_due();

  LogOptions options_;
  base::Env env_;
  std::unique_ptr<AppendFile> jsonl_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  bool terminal_ = false;
  bool line_open_ = false;
  int64_t first_step_ = 0;
  int64_t start_ns_ = 0;
  int64_t shown_ns_ = 0;
  int64_t flushed_ns_ = 0;
};

/// "step 120/2000  epoch 1.50  loss 2.4132  …": the text of a progress line. `seconds_left` < 0: unknown.
std::string progress_text(const StepRecord& record, int64_t total_steps, double seconds_left);
/// "81.2 MiB".
std::string mebibytes(int64_t bytes);
/// "2h05m", "3m20s", "14s".
std::string short_time(double seconds);

/// Lines of a log: steps and evaluations, in order. Lines that a killed process left unfinished are skipped.
struct LoggedRun {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;
  base::Json start;  ///< fields of the last event "start"
  base::Json end;    ///< fields of the last event "end"
  std::vector<LostWork> restarts;
};
LoggedRun read_log(const std::string& path);

}  // namespace trireme::train
