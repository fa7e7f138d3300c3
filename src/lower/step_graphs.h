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

/// The part of a step that one graph computes. Without a pipeline: a micro-batch before the last, or the last
/// with the update. In a pipeline: a micro-batch in one part of the model, which becomes several programs
/// (stage); the gradients of parameters that several stages hold (tied); the update of a stage.
enum class StepPart : uint8_t { more, last, stage, tied, update };

/// Which graph of a step.
struct StepKey {
  std::vector<tensor::Dims> shapes;  ///< of the inputs
  size_t micro_batches = 1;          ///< that this rank runs in a step
  StepPart part = StepPart::last;
  size_t chunk = 0;  ///< of StepPart::stage: index among the parts of the model on this stage
  auto operator<=>(const StepKey&) const = default;
};

/// A graph before the step passes, with the states that it uses and a description for the record of the run.
struct StepGraph {
  ir::Graph graph;
  std::vector<ir::Value> held;  ///< every state that the graph reads or updates: name, type, shard
  std::vector<passes::OptimizerState> states;  ///< of the optimizer
  /// 16-bit copies of states, by name: the state they are a copy of.
  std::map<std::string, std::string> copies;
  std::string optimizer_text, precision_text;
};

/// Checks the placements of a rank's graph (training contract C1). Throws invalid_argument naming the node
/// whose operands have placements that contradict each other, or the output that differs between ranks.
void check_shards(const ir::Graph& graph);

/// What the update of a pipeline stage needs to know about one part of the model on it.
struct StageSums {
  struct Param {
    std::string name;
    int dim = -1;  ///< the dimension that ZeRO splits, or -1
    passes::OptimizerKind kind = passes::OptimizerKind::adamw;
    ir::Value param, copy;  ///< the state and its 16-bit copy; the copy has an empty name if there is none
    ir::Value sum;          ///< type and shard of the partial sums
  };
  struct Statistic {
    std::string state, from;
    double keep = 0;
    ir::Value value, sum;
  };
  std::vector<Param> params;
  std::vector<Statistic> statistics;
  std::vector<ir::Value> counters;  ///< of the model's last part: type and shard of their partial sums
};

/// One part of the model in a step: forward and backward of a micro-batch, sums over micro-batches.
struct StageGraph {
  StepGraph step;
  std::vector<std::string> in, out;  ///< values received from and sent to other parts: passes::PipelinePart
};

std::string tied_sum(const std::string& param);

/// Builds the graphs of training steps from one loss graph. Objects passed by reference must outlive it.
class StepGraphs {
 public:
  /// `training` is the loss graph in training form: its params are states, its outputs loss_sum and counters.
  StepGraphs(const ir::Graph& training, const StepOptions& options, const RankPlace& place);

  /// Builds a whole step; sets `is_reached` of `params`. Throws unsupported naming the node that cannot be
  /// differentiated.
  StepGraph make(const StepKey& key, std::vector<TrainedParam>& params);
  /// Builds one part of a pipeline stage. The first call decides where the model is cut. Throws unsupported
  /// for a weight that two parts on the same stage read.
  StageGraph make_stage(const StepKey& key, std::vector<TrainedParam>& params);
  /// Builds the graph that sums, over micro-batches and data-parallel ranks, the gradients of parameters that
  /// several stages hold; its outputs are called tied_sum(param). Call after make_stage of all parts of this
  /// stage for the same sizes.
  StepGraph make_tied(const StepKey& key);
  /// Builds the update of this stage. Call after make_tied: the gradients of parameters that several stages
  /// hold are read from states called tied_sum(param), which hold their sums over the stages.
  StepGraph make_update(const StepKey& key);
  /// The stages that hold each param or state, in ascending order, once the model is cut.
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
