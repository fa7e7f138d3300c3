// The graphs of a training step on one rank: forward, backward, sums over micro-batches and ranks, update.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/step_options.h"
#include "lower/training_form.h"
#include "passes/partition/data_parallel.h"
#include "passes/pipeline/pipeline.h"

namespace trireme::lower {

/// Part of a step that one program runs: a micro-batch that others follow, or the last with the update. In a
/// pipeline: a micro-batch in one part of the model, which becomes several programs; the gradients of
/// parameters that other stages hold too; the update of a stage.
enum class StepPart : uint8_t { more, last, stage, tied, update };

/// Which graph of a step.
struct StepKey {
  std::vector<tensor::Dims> shapes;  ///< of the feeds
  size_t micro_batches = 1;          ///< of this rank
  StepPart part = StepPart::last;
  size_t chunk = 0;  ///< of a stage: which of the stage's parts
  auto operator<=>(const StepKey&) const = default;
};

/// A graph before the step passes, and what is to be known about it.
struct StepGraph {
  ir::Graph graph;
  std::vector<ir::Value> held;  ///< every state that the graph reads or updates: name, type, shard
  std::vector<passes::OptimizerState> states;  ///< of the optimizer
  /// 16-bit copies of states, by name: the state they are a copy of.
  std::map<std::string, std::string> copies;
  std::string optimizer_text, precision_text;
};

/// Throws invalid_argument naming the node where the placements of a rank's graph do not fit each other, or
/// the output that is not the same on all ranks (training contract C1).
void check_shards(const ir::Graph& graph);

/// What the update of a pipeline stage has to know of one of its parts.
struct StageSums {
  struct Param {
    std::string name;
    int dim = -1;  ///< that ZeRO cuts, or -1
    passes::OptimizerKind kind = passes::OptimizerKind::adamw;
    ir::Value param, copy;  ///< the state, and its 16-bit copy if that has a name
    ir::Value sum;          ///< type and shard of the partial sums
  };
  struct Statistic {
    std::string state, from;
    double keep = 0;
    ir::Value value, sum;
  };
  std::vector<Param> params;
  std::vector<Statistic> statistics;
  std::vector<ir::Value> counters;  ///< of the last part: type and shard of their partial sums
};

/// One part of the model in a step: forward and backward of a micro-batch, sums over micro-batches.
struct StageGraph {
  StepGraph step;
  std::vector<std::string> in, out;  ///< what crosses: see passes::PipelinePart
};

std::string tied_sum(const std::string& param);

/// Makes the graphs of the steps of one loss graph. References outlive it.
class StepGraphs {
 public:
  /// `training`: the loss graph in training form, its params states. Outputs: loss_sum, then counters.
  StepGraphs(const ir::Graph& training, const StepOptions& options, const RankPlace& place);

  /// Reads and writes `params`: is_reached. Throws unsupported naming the node that cannot be differentiated.
  StepGraph make(const StepKey& key, std::vector<TrainedParam>& params);
  /// In a pipeline. The first one decides where the model is cut. Throws unsupported for a weight that two
  /// parts on one stage read.
  StageGraph make_stage(const StepKey& key, std::vector<TrainedParam>& params);
  /// After make_stage of all its parts for the same sizes: the gradients, summed over micro-batches and
  /// data-parallel ranks, of parameters that several stages hold, as outputs called tied_sum(param).
  StepGraph make_tied(const StepKey& key);
  /// Then: the update of this stage, whose tied gradients are states tied_sum(param), summed over the stages.
  StepGraph make_update(const StepKey& key);
  /// Stages that hold a param or state, ascending; of a cut that is made.
  const std::map<std::string, std::vector<int>>& holders() const { return holders_; }
  int stage() const { return place_.on("pp"); }
  const passes::PipelineCut& pipeline_cut() const { return cut_; }

 private:
  struct Draft;
  void forward(Draft& draft, const StepKey& key);
  const tensor::MeshShape& mesh() const { return place_.mesh; }
  int tensor_ranks() const { return mesh().extent("tpr") * mesh().extent("tp"); }
  void split_over_ranks(Draft& draft) const;
  tensor::Dims even_parts(const ir::Value& weight) const;
  void differentiate(Draft& draft, std::vector<TrainedParam>& params);
  void take_statistics(Draft& draft);
  void place_inputs(ir::Graph& graph) const;
  void choose_parts(Draft& draft);
  void share_out_params(Draft& draft);
  void add_sums(Draft& draft, const StepKey& key);
  void sum_up(Draft& draft, const StepKey& key) const;
  bool is_tied(const std::string& name) const { return holders_.at(name).size() > 1; }
  std::vector<StageSums> parts_of(const StepKey& key) const;
  void cut(const ir::Graph& graph);
  StageSums sums_of(const Draft& draft, size_t micro_batches) const;
  void share_counters(Draft& draft, const std::vector<StageSums>& parts) const;
  void add_update(Draft& draft, const StepKey& key);
  void write_back(Draft& draft, const passes::OptimizerPlan& plan,
                  const std::vector<ir::ValueId>& copies) const;
  void add_running_statistics(Draft& draft, const passes::OptimizerPlan& plan, const StepKey& key) const;
  /// Sorts a finished graph and checks its sharding types, and that results are the same on all ranks.
  StepGraph settle(Draft& draft, bool has_common_results) const;
  void gather_for_update(Draft& draft, size_t i) const;
  std::string describe_parts(const Draft& draft) const;
  ir::ValueId mean_loss(ir::Graph& graph, ir::ValueId loss_sum) const;

  const ir::Graph& training_;
  const StepOptions& options_;
  const RankPlace& place_;
  std::map<std::string, tensor::Shard> placed_;  ///< weights that tensor-parallel ranks split
  passes::PipelineCut cut_;
  std::map<std::string, std::vector<int>> holders_;
  std::map<StepKey, StageSums> stage_sums_;     ///< by the keys of stages
  std::map<std::string, ir::Value> tied_sums_;  ///< type and shard of gradients that cross stages, by param
};

}  // namespace trireme::lower
