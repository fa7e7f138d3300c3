// The training loop: batches in, steps out, and everything that happens between them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "data/loader/loader.h"
#include "engine/train/train_session.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/evaluate.h"
#include "train/config/feed.h"
#include "train/checkpoint/rank_states.h"
#include "train/ranks/ranks.h"
#include "train/report/run_log.h"
#include "train/run_state.h"
#include "train/ranks/slow_ranks.h"
#include "train/config/train_config.h"

namespace trireme::train {

/// What is trained on what. The loss graph has the outputs loss_sum, count and perhaps correct.
struct TrainTask {
  ir::Graph loss;
  std::vector<std::string> target_inputs{"labels", "box_labels"};
  data::DatasetPtr data, validation;  ///< validation may be null
  data::Transform transform, validation_transform;
  base::Json config;  ///< resolved: part of every checkpoint
};

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

  /// Goes on from a checkpoint, given as for find_checkpoint(). Throws invalid_argument if it is of other
  /// data, another seed or another model.
  void resume(const std::string& path);
  /// Goes on from the newest intact checkpoint of the run directory; false if there is none.
  bool resume_auto();

  /// Runs to the end, or until `stop` says so, which is asked after every step. Throws what ended it: a data
  /// error, a failed checkpoint, max_skips steps in a row that were not finite.
  RunResult run(const std::function<bool()>& stop);

  engine::TrainSession& session() { return session_; }
  /// The compiled step: one program, or one of a micro-batch and one of the update.
  std::vector<const compile::Program*> programs() {
    return session_.programs(shapes(), static_cast<size_t>(batch_.accumulate));
  }
  const RunState& state() const { return state_; }

 private:
  void start_run();
  std::string set_product_rate();
  void tell_restart(const LostWork& lost);
  StepRecord one_step();
  bool share(StepRecord& record, bool stopping) const;
  void watch_ranks(const StepRecord& own);
  std::vector<engine::Feeds> next_batches(StepRecord& record);
  void judge(const StepRecord& record);
  void judge_spike(const StepRecord& record);
  void roll_back();
  std::string rollback_target() const;
  void after_step(bool last, bool stopping);
  EvalRecord evaluate();
  RankStates& states();
  Checkpoint head() const;
  void restore(const CheckpointReader& checkpoint);
  std::unique_ptr<CheckpointReader> open_checked(const std::string& path) const;
  std::vector<std::string> candidates() const;
  void save(double score);
  void take(const CheckpointOutcome& outcome);
  double score() const;
  std::vector<tensor::Dims> shapes() const { return feeder_.shapes(batch_.micro); }
  void finish(RunResult& result);

  const TrainConfig& config_;
  TrainTask task_;
  Ranks ranks_;
  base::Log quiet_{base::LogLevel::off};
  base::Env env_;
  std::string directory_;
  BatchPlan batch_;
  data::Loader loader_;
  Feeder feeder_;
  int64_t total_steps_;
  int64_t units_;  ///< what the schedule counts, a sample: 1, or its tokens
  Schedule schedule_;
  LossScaler scaler_;  ///< of f16; other runs do not ask it
  SpikeGuard guard_;
  SlowRanks slow_{ranks_};
  engine::TrainSession session_;
  std::unique_ptr<RankStates> states_;  ///< once the session has all its states
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<RunLog> log_;
  PosixFiles files_;
  std::unique_ptr<CheckpointWriter> writer_;
  RunState state_;
  std::optional<EvalRecord> last_eval_;
  int64_t saved_step_ = -1;
  std::string resumed_from_;  ///< the checkpoint; empty: a new run
  int64_t ranks_before_ = 1;
  double stall_s_ = 0;  ///< how long the last save() held the training up: the copy, and the write before it
  int64_t start_ns_ = 0;
  bool has_accuracy_ = false;  ///< the loss graph says how many targets were right
  double flop_per_step_ = 0;   ///< 3 x forward
  double product_rate_ = 0;    ///< flop/s of this machine; 0: not measured
};

}  // namespace trireme::train
