// Runs one rank's programs of a model that several ranks hold together: activations come from the stage
// before, go to the next, results to the first rank.
#pragma once

#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "engine/ranks/pipeline.h"
#include "engine/ranks/rank_model.h"
#include "runtime/executor.h"

namespace trireme::engine {

/// A batch goes through the stages in micro-batches where its rows can be computed apart, so that stages work
/// at the same time. Used by its rank's owner thread only. All ranks make the same calls in the same order.
class RankRunner {
 public:
  /// `threads` and `cpus`: of this rank. The references outlive the runner.
  RankRunner(RankModel& model, comm::Mesh& mesh, const SessionOptions& options);

  /// Binds the program of these shapes; collective the first time.
  const compile::Program& prepare(const std::vector<tensor::Dims>& shapes);
  /// The model's inputs, the same on every rank; results arrive in the first rank's `outputs`, which have the
  /// types of RankProgram::results, and are not looked at elsewhere.
  void run(const std::vector<tensor::Tensor>& inputs, std::vector<tensor::Tensor>& outputs,
           runtime::Trace* trace = nullptr);
  int64_t arena_bytes() const { return arena_bytes_; }

 private:
  struct Bound {
    std::shared_ptr<const RankProgram> program;
    std::unique_ptr<runtime::Executor> executor;
    std::vector<tensor::Tensor> results;     ///< whole, where the caller's memory does not take them
    std::vector<int64_t> in, out;            ///< of stages: where crossing values lie in their buffers
    std::unique_ptr<PipelineRunner> stages;  ///< null: there are none
    void* arena = nullptr;
  };
  Bound& bound_for(const std::vector<tensor::Dims>& shapes);
  std::unique_ptr<Bound> bind(const std::vector<tensor::Dims>& shapes);
  void bind_arena(Bound& bound);
  void add_stages(Bound& bound);
  void run_micro_batch(Bound& bound, int micro_batch, const PipelineBuffers& buffers,
                       const std::vector<tensor::Tensor>& inputs, runtime::Trace* trace);
  void deliver(std::vector<tensor::Tensor>& results);

  RankModel& model_;
  comm::Mesh& mesh_;
  base::ThreadPool pool_;
  tensor::Device& device_;
  std::unique_ptr<tensor::Stream> stream_;
  runtime::DeviceBinding on_;
  std::shared_ptr<void> arena_;
  int64_t arena_bytes_ = 0;
  std::unique_ptr<PipelineLinks> links_;
  lower::ProgramCache<std::vector<tensor::Dims>, Bound> bound_;
};

}  // namespace trireme::engine
