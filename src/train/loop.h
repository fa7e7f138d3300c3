// The training loop: batches in, steps out, and everything that happens between them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "train/evaluate.h"
#include "train/ranks/ranks.h"
#include "train/ranks/slow_ranks.h"
#include "train/report/run_log.h"
#include "train/run_checkpoints.h"
#include "train/run_steps.h"

namespace trireme::train {

struct RunResult {
  RunState state;
  bool interrupted = false;  ///< asked to stop; a checkpoint holds everything
  std::string reason;        ///< "done", "interrupted", or what went wrong
  std::optional<EvalRecord> last_eval;
};

/// One run in one directory:
///   config.yaml  log.jsonl  tensorboard/  checkpoints/  report.md  plots/
/// The bits of the states after step n depend on the task and the configuration only: not on threads,
/// workers, data-parallel ranks (for the same micro-batch), nor on how often the run was stopped and resumed.
class Trainer {
 public:
  /// `ranks`: this rank among those that run the same configuration and task; every call is then made on
  /// every rank. Only the leader writes and tells.
  Trainer(const TrainConfig& config, TrainTask task, base::Env env, Ranks ranks = {});
  ~Trainer();

  /// See RunCheckpoints; before run().
  void resume(const std::string& path) { checkpoints_.resume(path); }
  bool resume_auto() { return checkpoints_.resume_auto(); }

  /// Runs to the end, or until `stop` says so, which is asked after every step. Throws what ended it: a data
  /// error, a failed checkpoint (where the run was to stop, whatever checkpoint.on_error says), max_skips
  /// steps in a row that were not finite.
  RunResult run(const std::function<bool()>& stop);

  engine::TrainSession& session() { return steps_.session(); }
  /// The compiled step: one program, or one of a micro-batch and one of the update.
  std::vector<const compile::Program*> programs() {
    return session().programs(steps_.shapes(), steps_.accumulated());
  }
  const RunState& state() const { return steps_.state(); }

 private:
  void start_run();
  std::string measure_rates();
  void tell_restart(const LostWork& lost);
  void watch_ranks(const StepRecord& own);
  void judge(const StepRecord& record);
  void answer_spike(const StepRecord& record, const SpikeVerdict& verdict);
  void after_step(bool last, bool stopping);
  EvalRecord evaluate();
  void save_before_error();
  double score() const;
  void finish(RunResult& result);

  const TrainConfig& config_;
  TrainTask task_;
  Ranks ranks_;
  base::Log quiet_{base::LogLevel::off};
  base::Env env_;
  std::string directory_;
  RunSteps steps_;
  RunCheckpoints checkpoints_;
  SlowRanks slow_{ranks_};
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<RunLog> log_;
  std::optional<EvalRecord> last_eval_;
  int64_t start_ns_ = 0;
};

}  // namespace trireme::train
