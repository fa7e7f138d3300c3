// A loss graph made trainable: its weights and running statistics become states.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::lower {

inline constexpr const char* kLossOutput = "loss_sum";

/// A parameter as the optimizer sees it, for the run's record.
struct TrainedParam {
  std::string name;
  tensor::Dims dims;       ///< of the whole parameter
  bool is_reached = true;  ///< false: the loss does not depend on it, so it keeps its content
};

struct TrainingForm {
  ir::Graph graph;                   ///< its outputs are loss_sum and the counters
  std::vector<std::string> states;   ///< names of the params that became states, in the graph's order
  std::vector<TrainedParam> params;  ///< those of the states that the optimizer updates
};

/// Turns float params that have a dimension into states, except those whose name contains one of `freeze`,
/// and running statistics of batch norms into states that are not trained. A batch norm keeps its inference
/// form where it says so (passes::is_fixed_norm) and where its statistics are no params. Params need no
/// content. Throws invalid_argument for a graph without an output "loss_sum" or without a weight to train,
/// and for a weight without a name; what require_trainable_types() throws; unsupported for a weight inside of
/// a subgraph.
TrainingForm training_form(ir::Graph loss_graph, const std::vector<std::string>& freeze);

/// Throws unsupported, naming it, for a float param that has a dimension, is not f32 and is not frozen.
void require_trainable_types(const ir::Graph& graph, const std::vector<std::string>& freeze);

/// Lets batch norms whose two running statistics `freeze` names keep their inference form in training. Not
/// for graphs that state which norms train (passes::states_trained_norms), where running statistics are as
/// often named for being no weights.
void fix_frozen_norms(ir::Graph& graph, const std::vector<std::string>& freeze);

/// The names of constants that products read as they read weights, at once or moved and cast, but for those
/// that are frozen: tensors of a file that are no params, so that training leaves them as they are.
std::vector<std::string> constant_weights(const ir::Graph& graph, const std::vector<std::string>& freeze);

}  // namespace trireme::lower
