// From a loss graph to the programs of a training step on one rank: step graphs, the passes over them, what
// is computed again, kernels and memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory/shared_cache.h"
#include "lower/program_cache.h"
#include "lower/stage_programs.h"
#include "passes/train/recompute.h"

namespace trireme::lower {

/// What is computed again goes by bytes, which differ between ranks where parts are of uneven length;
/// collectives that are done again must not. So all ranks whose programs meet take the plans of the first
/// one, which holds the largest parts. Collective.
class Agreement {
 public:
  virtual ~Agreement() = default;
  /// Replaces the plans by those of the first rank; `nodes`: of the graph they are for.
  virtual void share(std::vector<passes::RecomputePlan>& plans, size_t nodes) = 0;
  /// The largest of the ranks' numbers.
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
  LoweredStep tied;                  ///< sums of gradients that other stages hold too; without outputs: none
  LoweredStep update;
  int64_t buffer_bytes = 0;  ///< of all parts, for the micro-batches in flight
};

/// Makes and compiles the programs of one rank. Needs no communicator, no device and no content of weights.
/// References outlive it.
class StepLowering {
 public:
  /// `agreement`: with the ranks whose programs meet. Null: there is one, or they are not here (a rank's
  /// programs are only looked at): then the plans are made for the first of them as well.
  StepLowering(TrainingForm form, StepTarget target, base::SharedCache& packs,
               Agreement* agreement = nullptr);
  ~StepLowering();

  /// A part of a step without pipeline: StepPart::more or last. Throws unsupported naming the node that
  /// cannot be differentiated, exhausted where activations do not fit their budget.
  LoweredStep lower(const StepKey& key);
  /// A step on this rank's stage of a pipeline; `key` with any part.
  LoweredPipeline lower_pipeline(const StepKey& key);
  /// A graph of a step before the step passes, not compiled: for tests.
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
