// The graphs of a training step on one rank: forward, backward, sums over micro-batches and ranks, update.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/state_store.h"
#include "engine/train_options.h"
#include "passes/data_parallel.h"

namespace trireme::engine {

/// A parameter as the optimizer sees it, for the run's record.
struct TrainedParam {
  std::string name;
  tensor::Dims dims;       ///< of the whole parameter
  bool is_reached = true;  ///< false: the loss does not depend on it, so it keeps its content
};

/// Part of a step that one program runs: a micro-batch that others follow, or the last with the update.
enum class StepPart : uint8_t { more, last };

/// Which graph of a step.
struct StepKey {
  std::vector<tensor::Dims> shapes;  ///< of the feeds
  size_t micro_batches = 1;          ///< of this rank
  StepPart part = StepPart::last;
  auto operator<=>(const StepKey&) const = default;
};

/// A graph before the step passes, and what is to be known about it.
struct StepGraph {
  ir::Graph graph;
  std::vector<passes::OptimizerState> states;  ///< of the optimizer
  /// 16-bit copies of states, by name: the state they are a copy of.
  std::map<std::string, std::string> copies;
  std::string optimizer_text, precision_text;
};

/// Throws invalid_argument naming the node where the placements of a rank's graph do not fit each other, or
/// the output that is not the same on all ranks (training contract C1).
void check_shards(const ir::Graph& graph);

/// Makes the graphs of the steps of one loss graph. References outlive it.
class StepGraphs {
 public:
  /// `training`: the loss graph in training form, its params states. Outputs: loss_sum, then counters.
  StepGraphs(const ir::Graph& training, const TrainOptions& options);

  /// Reads and writes `params`: is_reached. Throws unsupported naming the node that cannot be differentiated.
  StepGraph make(const StepKey& key, std::vector<TrainedParam>& params);
  const std::vector<int>& coordinates() const { return coordinates_; }
  const tensor::MeshShape& mesh() const { return mesh_; }

 private:
  struct Draft;
  void differentiate(Draft& draft, const StepKey& key, std::vector<TrainedParam>& params);
  void take_statistics(Draft& draft);
  void place_inputs(ir::Graph& graph) const;
  void choose_parts(Draft& draft);
  void share_out_params(Draft& draft);
  void add_sums(Draft& draft, const StepKey& key);
  void add_update(Draft& draft, const StepKey& key);
  ir::ValueId mean_loss(ir::Graph& graph, ir::ValueId loss_sum) const;

  const ir::Graph& training_;
  const TrainOptions& options_;
  tensor::MeshShape mesh_;
  std::vector<int> coordinates_;
};

}  // namespace trireme::engine
