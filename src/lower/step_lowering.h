// From a loss graph to the programs of a training step on one rank: step graphs, the passes over them,
// recomputation, kernels and memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory/shared_cache.h"
#include "lower/program_cache.h"
#include "lower/stage_programs.h"
#include "passes/train/recompute.h"

namespace trireme::lower {

/// Recomputation is planned by bytes, and ranks with parts of different lengths would plan differently. But
/// all ranks must repeat the same collectives. So all ranks that communicate in a step use the plans of the
/// first one, which holds the largest parts. All calls are collective.
class Agreement {
 public:
  virtual ~Agreement() = default;
  /// Replaces the plans by those of the first rank.
  virtual void share(std::vector<passes::RecomputePlan>& plans) = 0;
  /// Returns the maximum of `bytes` over the ranks.
  virtual int64_t largest(int64_t bytes) = 0;
};

/// What the programs of one rank are made for.
struct StepTarget {
  StepOptions options;
  RankPlace place;
  compile::CompileOptions compile;  ///< `overlap` is the strategy's
};

/// A compiled part of a step.
struct LoweredStep {
  StepGraph step;                                   ///< its graph is that after all passes
  std::shared_ptr<const compile::Program> program;  ///< planned, see compile::bind()
};

/// A step on one stage of a pipeline.
struct LoweredPipeline {
  passes::PipelineOrder order;
  std::vector<LoweredStage> chunks;  ///< the parts of the model on this stage
  LoweredStep tied;  ///< sums gradients of weights that other stages share; no outputs if none
  LoweredStep update;
  int64_t buffer_bytes = 0;  ///< total buffer size of all parts for the micro-batches in flight
};

/// Builds and compiles the programs of one rank. Needs no communicator, no device and no weight bytes.
/// Objects passed by reference must outlive it.
class StepLowering {
 public:
  /// `agreement` connects the ranks that communicate in a step. Null if there is one rank, or if the other
  /// ranks are not running (inspecting a program): then the first rank's plans are computed here as well.
  StepLowering(TrainingForm form, StepTarget target, base::SharedCache& packs,
               Agreement* agreement = nullptr);
  ~StepLowering();

  /// Lowers a part of a step without pipeline, StepPart::more or StepPart::last. Throws unsupported naming
  /// the node that cannot be differentiated, exhausted if activations do not fit their budget.
  LoweredStep lower(const StepKey& key);
  /// Lowers a step on this rank's pipeline stage; the part in `key` is ignored.
  LoweredPipeline lower_pipeline(const StepKey& key);
  /// Returns the graph of a step before its passes, not compiled. For tests.
  StepGraph make_graph(const StepKey& key) { return graphs_.make(key, form_.params); }

  const TrainingForm& form() const { return form_; }
  const StepGraphs& graphs() const { return graphs_; }
  int stages() const { return place_.mesh.extent("pp"); }

 private:
  LoweredStep finish(StepGraph step, const StepKey& key);
  LoweredStage lower_chunk(const StepKey& key, const passes::PipelineSlots& slots);
  void fuse(ir::Graph& graph) const;
  std::shared_ptr<const compile::Program> compile(ir::Graph& graph, bool gathers_again);
  std::vector<passes::RecomputePlan> plans_for(const ir::Graph& graph, const StepKey& key);
  std::vector<passes::RecomputePlan> by_work(const ir::Graph& graph) const;
  int64_t largest(int64_t bytes) { return agreement_ == nullptr ? bytes : agreement_->largest(bytes); }
  StepLowering* first_rank();
  [[noreturn]] void fail_budget(int64_t least) const;

  TrainingForm form_;
  StepOptions options_;
  RankPlace place_;
  compile::CompileOptions compile_;
  base::SharedCache& packs_;
  Agreement* agreement_;
  StepGraphs graphs_;
  ProgramCache<StepKey, passes::RecomputePlan> chosen_;  ///< for ranks that take this one's plans
  std::unique_ptr<StepLowering> first_;  ///< of the ranks that programs meet, where it is another
};

}  // namespace trireme::lower
