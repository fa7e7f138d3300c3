// A training session: one loss graph made trainable, its states, and the programs of its steps.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/train_pipeline.h"
#include "lower/program_cache.h"
#include "lower/step_lowering.h"

namespace trireme::engine {

/// What a step wants besides its data.
struct StepInputs {
  float lr = 0;
  int64_t step = 1;  ///< count of executed updates, from 1: Adam's bias correction
  int64_t seed = 0;  ///< of dropout
  int64_t draw = 0;  ///< count of steps begun: tells the random numbers of steps apart
  /// Row of the step's first micro-batch (of all ranks) in the global batch: places random numbers. All
  /// micro-batches of a step have as many rows.
  int64_t first_row = 0;
  float loss_weight = 1;  ///< 1 / valid targets of the whole step on all ranks, times the loss scale
  float grad_scale = 1;   ///< 1 / loss scale
  float norm_limit = INFINITY, loss_limit = INFINITY;  ///< of guarded sessions: gradient norm, mean loss
};

/// Numbers of the whole step, equal on all ranks; times are this rank's.
struct StepResult {
  double loss_sum = 0;   ///< over the valid targets of all micro-batches, unscaled
  double count = 0;      ///< valid targets; 0 if the graph has no output "count"
  double correct = 0;    ///< of them predicted right; 0 if the graph has no output "correct"
  double grad_norm = 0;  ///< of the unscaled gradients before clipping
  bool skipped = false;  ///< nothing changed: something was not finite or above a limit
  int64_t forward_ns = 0, backward_ns = 0, update_ns = 0;
  /// In collectives, and of it while the computation stood still; both are also in the three above where
  /// collectives ran in line.
  int64_t communication_ns = 0, exposed_ns = 0;
  /// Of a pipeline: share of the micro-batches' time in which stages wait, and what the schedule with the
  /// measured times of work leads one to expect.
  double bubble = 0, expected_bubble = 0;
};

/// Trains a graph whose output "loss_sum" is the sum of the loss over valid targets. Its float params of more
/// than one element become states; running statistics of batch norms too, untrained. One owner thread.
class TrainSession {
 public:
  /// Throws unsupported naming the node that cannot be differentiated once the first step is prepared.
  TrainSession(const ir::Graph& loss_graph, const TrainOptions& options);
  ~TrainSession();

  /// Forward and backward of every micro-batch, then one update. Programs are compiled per shape of the feeds
  /// and kept, the most recently used of them. Bits depend on the feeds, the inputs and the states only.
  /// Throws invalid_argument for feeds the graph does not take; states are unchanged then.
  StepResult step(std::span<const Feeds> micro_batches, const StepInputs& inputs);
  /// A step of one micro-batch.
  StepResult step(const Feeds& feeds, const StepInputs& inputs) { return step({&feeds, 1}, inputs); }
  /// Which of the step's micro-batches this rank takes as its number `i` of `per_rank` (all of one length, as
  /// many on each data-parallel rank). Runs of neighbours, or with ZeRO 2 and 3 every dp-th.
  size_t own_micro_batch(size_t i, size_t per_rank) const;
  /// Compiles the programs of a step of `micro_batches` micro-batches of these shapes.
  void prepare(const std::vector<tensor::Dims>& shapes, size_t micro_batches);

  /// What a checkpoint holds, on this rank: complete after the first prepare() or step().
  StateStore& states() { return states_->kept(); }
  const StateStore& states() const { return std::as_const(*states_).kept(); }
  /// Partial sums of gradients and 16-bit copies of weights: made anew from states() and steps.
  const StateStore& scratch() const { return std::as_const(*states_).scratch(); }
  /// Names of the copies, each with that of the state it is made of.
  const std::map<std::string, std::string>& copies() const { return states_->copies(); }
  const std::vector<lower::TrainedParam>& params() const { return lowering_->form().params; }
  /// The loss graph with the present weights as params: what is whole on this rank shares the bytes of the
  /// states (use it before the next step or clone it), what is split is gathered, a tensor at a time.
  /// Collective on a mesh. `ema`: the averaged weights where the optimizer keeps them.
  ir::Graph trained_graph(bool ema = false) const;
  /// Lets sessions of a model made of trained_graph() read the weights where training holds them on the
  /// device, instead of uploading copies. They show the present content only until the next step.
  void lend_weights(const PreparedModel& model);
  /// The device of this rank, as runtime::open_device() takes it.
  const std::string& device_name() const { return runner_.device_name(); }
  /// To be called after the content of states() was overwritten: copies that are made of them follow.
  /// Collective on a mesh.
  void states_changed();
  /// A graph of a step before the step passes, not compiled: for `inspect` and tests.
  lower::StepGraph make_graph(const lower::StepKey& key) { return lowering_->make_graph(key); }
  /// Programs of a step: of the last micro-batch with the update, after that of those before it.
  std::vector<const compile::Program*> programs(const std::vector<tensor::Dims>& shapes,
                                                size_t micro_batches);
  /// Where a pipeline is cut, and what its schedule leads one to expect; empty without stages.
  std::string pipeline_text(const std::vector<tensor::Dims>& shapes, size_t micro_batches);
  /// Bytes of the buffers of this pipeline stage: what crosses, and what micro-batches in flight keep.
  int64_t pipeline_bytes(const std::vector<tensor::Dims>& shapes, size_t micro_batches);
  /// Times of the steps of the first program of programs(), as its last run measured them; on devices its
  /// first.
  const runtime::Trace& trace(const std::vector<tensor::Dims>& shapes, size_t micro_batches);
  /// What the optimizer decided, for printing: groups, decays, states.
  const std::string& optimizer_text() const { return optimizer_text_; }
  /// What computes in 16 bits and what stays f32, with reasons; empty for f32. After the first prepare().
  const std::string& precision_text() const { return precision_text_; }
  int threads() const { return runner_.pool().size(); }
  /// The best rate, flop/s, of products in the type that this run computes in, measured on its device in
  /// about 0.2 s; nothing on the CPU, and on the emulated device, whose speed means nothing.
  std::optional<double> device_product_rate();
  /// Operators of these programs that run on the host though the device is another; empty for none.
  std::string host_operators(const std::vector<tensor::Dims>& shapes, size_t micro_batches);

 private:
  class Ranks;
  std::shared_ptr<BoundStep> part_of_step(const lower::StepKey& key, bool is_used);
  TrainPipeline& pipeline_for(const std::vector<tensor::Dims>& shapes, size_t micro_batches, bool is_used);
  void settle(const lower::StepGraph& step);
  std::vector<tensor::Dims> shapes_of(const Feeds& feeds) const;

  TrainOptions options_;
  StepRunner runner_;
  std::unique_ptr<Ranks> ranks_;  ///< null: this one alone
  std::unique_ptr<TrainStates> states_;
  std::unique_ptr<lower::StepLowering> lowering_;
  std::string optimizer_text_, precision_text_;
  lower::ProgramCache<lower::StepKey, std::shared_ptr<BoundStep>> steps_;
  std::unique_ptr<PipelineLinks> links_;
  lower::ProgramCache<lower::StepKey, TrainPipeline> pipelines_;
};

}  // namespace trireme::engine
