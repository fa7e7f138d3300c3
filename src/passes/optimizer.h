// Adds the update of the parameters to a graph that has their gradients.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "passes/train.h"

namespace trireme::passes {

/// What the optimizer is, and its numbers. Every field is a key of the run's configuration.
struct OptimizerOptions;

/// A state the optimizer keeps.
struct OptimizerState {
  std::string name;  ///< "<param>.adam_m"
  tensor::TensorType type;
  std::string copy_of = {};  ///< begins as a copy of this state (averaged weights); empty: zeros
};

struct OptimizerPlan {
  std::vector<OptimizerState> states;
  ir::ValueId grad_norm = ir::kNoValue;  ///< f32 []: global norm of the unscaled gradients, before clipping
  ir::ValueId skipped = ir::kNoValue;    ///< bool []: the update left every state as it was
  std::string text;                      ///< groups, decays and states, a line each, for people
};

/// Adds inputs `lr` and `step`, the states, the norm, the clip and the update nodes for `gradients`.
OptimizerPlan add_optimizer(ir::Graph& graph, std::span<const ParamGradient> gradients,
                            const OptimizerOptions& options);

}  // namespace trireme::passes
