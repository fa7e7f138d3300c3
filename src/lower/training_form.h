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
  ir::Graph graph;                   ///< outputs: loss_sum, then what is counted
  std::vector<std::string> states;   ///< names of the params that became states, in the graph's order
  std::vector<TrainedParam> params;  ///< of them, those that the optimizer changes
};

/// Float params of more than one element become states, except those whose name contains one of `freeze`;
/// running statistics of batch norms too, untrained. Reads types alone: params need no content. Throws
/// invalid_argument for a graph without an output "loss_sum" and for weights without a name.
TrainingForm training_form(ir::Graph loss_graph, const std::vector<std::string>& freeze);

}  // namespace trireme::lower
