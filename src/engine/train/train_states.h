// What a training session keeps: the states of its programs by name, and the model that shows their content.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/train/state_store.h"
#include "lower/step_lowering.h"

namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

class PreparedModel;

/// One owner thread. `mesh`: the ranks that train together; null: there is one. It outlives this.
class TrainStates {
 public:
  /// `model`: the loss graph with its first weights, sorted; `place`: this rank's.
  TrainStates(ir::Graph model, lower::RankPlace place, comm::Mesh* mesh)
      : model_(std::move(model)), place_(std::move(place)), mesh_(mesh) {}
  /// Before take(): programs find states in this device's memory.
  void live_on(tensor::Device& device, tensor::Stream& stream, runtime::Staging& staging);
  /// Copies the content of these params, which the model shows from now on.
  void take(const std::vector<std::string>& params);

  /// What a checkpoint holds, on this rank.
  StateStore& kept() { return kept_; }
  const StateStore& kept() const { return kept_; }
  /// Partial sums of gradients and 16-bit copies of weights: made anew from kept() and steps.
  StateStore& scratch() { return scratch_; }
  const StateStore& scratch() const { return scratch_; }
  /// Names of the copies, each with that of the state it is made of.
  const std::map<std::string, std::string>& copies() const { return copies_; }
  const ir::Graph& model() const { return model_; }

  /// Every state of a step gets a place with the content it begins with. Collective on a mesh.
  void settle(const lower::StepGraph& step);
  /// In a pipeline: weights of other stages need no memory here. `holders`: stages that hold a state.
  void forget_other_stages(const std::map<std::string, std::vector<int>>& holders);
  /// Where programs find a state.
  void* address(const std::string& name);
  /// Before programs run on a device: what the host wrote reaches it.
  void upload();
  /// What the program writes on a device is newer than the host's copies.
  void mark_written(const compile::Program& program);
  /// The content of kept() was overwritten: copies follow. Collective on a mesh.
  void changed();
  /// See TrainSession.
  ir::Graph trained_graph(bool ema, const std::map<std::string, std::vector<int>>& holders) const;
  void lend(const PreparedModel& model, const tensor::Device& device);

 private:
  void settle_weight(const std::string& name, const ir::Value& wanted);
  void settle_copy(const std::string& copy, const std::string& master, const lower::StepGraph& step);
  void settle_optimizer(const passes::OptimizerState& state);
  void share_over_stages(ir::Graph& graph, const std::map<std::string, std::vector<int>>& holders) const;
  void show(const std::string& name, const tensor::Tensor& content);

  ir::Graph model_;
  lower::RankPlace place_;
  comm::Mesh* mesh_;
  StateStore kept_, scratch_;
  std::map<std::string, std::string> copies_;
};

}  // namespace trireme::engine
