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
/// and running statistics of batch norms into states that are not trained. Params need no content. Throws
/// invalid_argument for a graph without an output "loss_sum" and for a weight without a name.
TrainingForm training_form(ir::Graph loss_graph, const std::vector<std::string>& freeze);

}  // namespace trireme::lower
