// The checkpoints of a run directory: written while steps go on, read to go on from one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/checkpoint/rank_states.h"
#include "train/run_steps.h"

namespace trireme::train {

/// Saves the tensors of the session and the state of the steps, and restores both. Every call is made on
/// every rank; only the leader names and lists files.
class RunCheckpoints {
 public:
  /// What is given outlives it.
  RunCheckpoints(const TrainConfig& config, const TrainTask& task, RunSteps& steps, const Ranks& ranks,
                 const base::Env& env);

  /// Goes on from a checkpoint, given as for find_checkpoint(). Throws invalid_argument if it is of other
  /// data, another seed or another model.
  void resume(const std::string& path);
  /// Goes on from the newest intact checkpoint of the run directory; false if there is none.
  bool resume_auto();
  /// The checkpoint that the run goes on from, and how many ranks had written it; empty: a new run.
  const std::string& resumed_from() const { return resumed_from_; }
  int64_t ranks_before() const { return ranks_before_; }

  /// Bytes of this rank's part of a checkpoint. Prepares the session, whose optimizer's states exist then.
  int64_t bytes();
  /// Before the first save; outcomes go to `log`, which outlives it. What an earlier process left
  /// half-written and checkpoints of later steps go.
  void open(RunLog& log);
  /// Warns where the disk has less room than two checkpoints of this rank need.
  void check_space();
  /// The present state, unless it is saved. `score`: higher is better, NaN if unknown. Throws if an earlier
  /// save failed and checkpoint.on_error is stop; so do poll() and wait().
  void save(double score);
  /// Tells what became of the last save, if it is over; wait(): once it is.
  void poll();
  void wait();
  /// Whether the present state is on the disk, as far as poll() and wait() have told.
  bool is_saved() const { return committed_step_ == steps_.state().step; }
  /// Throws why it is not.
  void require_saved() const;
  /// Weights, moments, schedule and guard as in the last checkpoint; the data goes on behind where it is now.
  void roll_back();

 private:
  RankStates& states();
  std::unique_ptr<CheckpointReader> open_checked(const std::string& path) const;
  std::vector<std::string> candidates() const;
  std::string rollback_target() const;
  void load_states(const CheckpointReader& checkpoint);
  void tell(const std::optional<CheckpointOutcome>& outcome);

  const TrainConfig& config_;
  const TrainTask& task_;
  const std::string root_;  ///< the folder of the step-… directories
  RunSteps& steps_;
  const Ranks& ranks_;
  const base::Env& env_;
  RunLog* log_ = nullptr;
  PosixFiles files_;
  std::unique_ptr<RankStates> states_;  ///< once the session has all its states
  std::unique_ptr<CheckpointWriter> writer_;
  int64_t saved_step_ = -1;
  int64_t committed_step_ = -1;         ///< of the last save that is on the disk
  std::optional<base::Error> failure_;  ///< of the last save that is not
  std::string resumed_from_;
  int64_t ranks_before_ = 1;
};

}  // namespace trireme::train
