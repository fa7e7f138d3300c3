// The steps of a run: what each is fed, what comes of it, and where the run stands afterwards.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "data/loader/loader.h"
#include "engine/train/train_session.h"
#include "train/config/feed.h"
#include "train/config/train_config.h"
#include "train/ranks/ranks.h"
#include "train/report/run_log.h"
#include "train/run_state.h"

namespace trireme::train {

/// What is trained on what. The loss graph has the outputs loss_sum, count and perhaps correct.
struct TrainTask {
  ir::Graph loss;
  std::vector<std::string> target_inputs{"labels", "box_labels"};
  data::DatasetPtr data, validation;  ///< validation may be null
  data::Transform transform, validation_transform;
  base::Json config;  ///< resolved: part of every checkpoint
};

/// One rank's steps: micro-batches from the loader, the learning rate from the schedule, the scale of the
/// loss, limits against spikes, and the session that computes. Its state is all that a checkpoint holds
/// besides tensors: counts, position in the data, scale, history of losses.
class RunSteps {
 public:
  /// `config`, `ranks` and `clock` outlive it.
  RunSteps(const TrainConfig& config, const TrainTask& task, const Ranks& ranks, base::Clock& clock);

  /// Runs the next step.
  StepRecord next();
  /// Makes the record that of all ranks: times of the slowest. Gives whether any rank was told to stop.
  /// Throws internal if the ranks do not agree on how the step went: their weights would drift apart.
  bool share(StepRecord& record, bool stopping) const;
  /// Counts steps in a row whose loss or gradients were not finite, and takes the others into the history of
  /// spikes. The verdict of a step that was not finite is to go on.
  SpikeVerdict judge(const StepRecord& record);
  /// Whether steps are left out to find the scale of the loss, which can still fall.
  bool is_searching_scale() const { return config_.is_scaled() && !scaler_.is_exhausted(); }

  /// Measures what the run is held against; says in words what MFU means then.
  std::string measure_rates(const TrainTask& task);
  double flop_per_step() const { return flop_per_step_; }

  engine::TrainSession& session() { return session_; }
  /// Of a micro-batch's inputs.
  std::vector<tensor::Dims> shapes() const { return feeder_.shapes(batch_.micro); }
  size_t accumulated() const { return static_cast<size_t>(batch_.accumulate); }
  const BatchPlan& batch() const { return batch_; }
  const Schedule& schedule() const { return schedule_; }
  const Feeder& feeder() const { return feeder_; }
  const data::Loader& loader() const { return loader_; }
  int64_t total() const { return total_steps_; }

  const RunState& state() const { return state_; }
  /// What a checkpoint says of it, added to its meta data; and back. Throws invalid_argument for other data,
  /// another seed, or a global batch with which it cannot go on, before anything has changed.
  void describe(base::Json& meta) const;
  void check(const base::Json& meta) const;
  void restore(const base::Json& meta);
  /// Takes scale, history and the count of updates from a checkpoint; the data goes on where it is.
  void roll_back(const base::Json& meta);

 private:
  std::vector<engine::Feeds> next_batches(StepRecord& record);
  void check_batch(int64_t before, const RunState& past) const;

  const TrainConfig& config_;
  const Ranks& ranks_;
  base::Clock& clock_;
  BatchPlan batch_;
  Feeder feeder_;
  data::Loader loader_;  ///< of the fields that are fed
  int64_t total_steps_;
  int64_t units_;  ///< what the schedule counts, a sample: 1, or its tokens
  Schedule schedule_;
  LossScaler scaler_;  ///< of f16; other runs do not ask it
  SpikeGuard guard_;
  engine::TrainSession session_;
  RunState state_;
  bool has_accuracy_;         ///< the loss graph says how many targets were right
  double flop_per_step_ = 0;  ///< 3 x forward
  double product_rate_ = 0;   ///< flop/s of this machine; 0: not measured
};

}  // namespace trireme::train
