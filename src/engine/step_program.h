// One compiled part of a training step, and the numbers that every part is fed.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/step_phases.h"
#include "engine/train_session.h"

namespace trireme::engine {

/// Position of the output called `name`, or nullopt.
inline std::optional<size_t> output_index(const ir::Graph& graph, std::string_view name) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<size_t>(at - names.begin());
}

/// Inputs of a step's programs that are no data.
struct StepScalars {
  const StepInputs& inputs;
  std::array<int64_t, 3> rng;  ///< seed, step, first row
  int64_t count;               ///< micro-batches before this one

  /// The address of the input `name`, or null if it is data.
  const void* find(std::string_view name) const {
    if (name == passes::kRngInput) return rng.data();
    if (name == passes::kCountInput) return &count;
    if (name == passes::kLossWeightInput) return &inputs.loss_weight;
    if (name == passes::kLrInput) return &inputs.lr;
    if (name == passes::kStepInput) return &inputs.step;
    if (name == passes::kGradScaleInput) return &inputs.grad_scale;
    if (name == passes::kNormLimitInput) return &inputs.norm_limit;
    if (name == passes::kLossLimitInput) return &inputs.loss_limit;
    return nullptr;
  }
};

/// One compiled part of a step with the memory of its results.
struct TrainSession::StepProgram {
  StepKey key;
  ir::Graph graph;
  std::shared_ptr<const compile::Program> program;
  std::unique_ptr<runtime::Executor> executor;
  std::vector<StepPhase> phases;        ///< per step of the program
  std::vector<tensor::Tensor> results;  ///< in the order of graph.output_names()
  void* arena = nullptr;                ///< what the executor was bound to last
  runtime::Trace trace;
  int64_t run_ns = 0;  ///< of the last run on a device, whose steps are not timed each time
  std::vector<const void*> in;
  std::vector<void*> out;

  /// The scalar result `name` as a number; 0 if there is none.
  double number(std::string_view name) const {
    const auto at = output_index(graph, name);
    return at ? results[*at].to_doubles()[0] : 0;
  }
};

}  // namespace trireme::engine
