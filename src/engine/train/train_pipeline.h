// Training steps of a pipeline stage: its programs, its run over the micro-batches, what stages share.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/ranks/pipeline.h"
#include "engine/train/step_runner.h"

namespace trireme::engine {

/// Inputs of one micro-batch, in the order of the loss graph's inputs.
using Feeds = std::vector<tensor::Tensor>;
/// The scalars of micro-batch i of a step.
using ScalarsOf = std::function<StepScalars(size_t micro_batch)>;

/// The steps of one size on this rank's stage. One owner thread; all stages make the same calls.
class TrainPipeline {
 public:
  /// `states` has settled all steps of `lowered`. `holders`: stages that hold a parameter. References outlive
  /// this.
  TrainPipeline(lower::LoweredPipeline lowered, const std::map<std::string, std::vector<int>>& holders,
                StepRunner& runner, TrainStates& states, PipelineLinks& links);
  ~TrainPipeline();

  /// Forward and backward of all micro-batches, then the update. If a stage fails before the update, no
  /// weight has moved on any.
  StepResult step(std::span<const Feeds> micro_batches, const ScalarsOf& scalars);

  /// Those of the parts of the model, then the update.
  std::vector<const compile::Program*> programs() const;
  const runtime::Trace& trace() const;  ///< of the first part's forward program
  const passes::PipelineOrder& order() const { return runs_->order(); }
  int64_t buffer_bytes() const { return runs_->buffer_bytes(); }

 private:
  struct Part;
  void act(const passes::PipelineAction& action, const PipelineBuffers& buffers, const Feeds& feeds,
           const StepScalars& scalars);
  void add_tied(const StepScalars& scalars);
  void add_over_stages(tensor::Tensor& mine, const std::vector<int>& holders);
  void add_times(StepResult& result, const PipelineReport& report, size_t micro_batches) const;

  StepRunner& runner_;
  TrainStates& states_;
  comm::Communicator& stages_;
  const std::map<std::string, std::vector<int>>& holders_;
  std::vector<Part> parts_;
  std::unique_ptr<BoundStep> tied_;  ///< null: no other stage has a parameter of this one
  std::unique_ptr<BoundStep> update_;
  std::unique_ptr<PipelineRunner> runs_;
};

}  // namespace trireme::engine
