// The graph of a training step while it is built: what the builders of whole steps and of pipeline stages
// share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lower/step_graphs.h"
#include "passes/train/gradient_norm.h"

namespace trireme::lower {

inline constexpr const char* kGradientSuffix = ".grad";

/// The output of that name. Throws internal.
inline ir::ValueId output_of(const ir::Graph& graph, const std::string& name) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  base::check(at != names.end(), "the step has no output '", name, "'");
  return graph.outputs()[static_cast<size_t>(at - names.begin())];
}

/// The state of that name. Throws internal.
inline ir::ValueId state_of(const ir::Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& v = graph.values()[i];
    if (v.kind == ir::ValueKind::state && v.name == name) return ir::ValueId(static_cast<uint32_t>(i));
  }
  base::fail(base::ErrorCode::internal, "the step has no state '", name, "'");
}

/// Suffix of the outputs that hold a statistic of this micro-batch, as kGradientSuffix is of gradients.
inline constexpr const char* kStatisticSuffix = ".batch";

/// The states that are trained, in the order of the graph.
std::vector<ir::ValueId> trained_states(const ir::Graph& graph, const std::vector<TrainedParam>& params);

/// A step's graph while it is built. Values are kept by name where a pass may renumber them.
struct StepGraphs::Draft {
  StepGraph made;
  ir::Graph& graph = made.graph;
  size_t counters = 0;  ///< number of leading outputs that are loss_sum and counters
  /// A running statistic of a batch norm (`state`), and the value of this micro-batch that enters it
  /// (`from`).
  struct Statistic {
    std::string state;
    double keep;
    std::string from;
  };
  std::vector<Statistic> statistics;
  /// Gradients in the order in which the backward pass completes them. For `part` >= 0 see ZeroParam.
  std::vector<passes::ParamGradient> gradients;
  std::vector<std::string> names;
  std::vector<int> dims;
  std::vector<passes::OptimizerKind> kinds;
  std::vector<ir::ValueId> copies;  ///< 16-bit copies that the forward pass reads, or kNoValue
  std::vector<passes::StepSum> sums;

  /// Whether tensor-parallel ranks split parameter i while its optimizer needs it whole: it is gathered
  /// first, and the update's results are whole as well.
  bool is_gathered_for_update(size_t i) const {
    return passes::needs_whole(kinds[i]) && !passes::split_axes(graph, gradients[i].param).empty();
  }
  /// Whether each rank holds the whole 16-bit copy of parameter i but updates a part of it (ZeRO 1 and 2).
  bool is_shared_copy(size_t i) const {
    return copies[i] != ir::kNoValue && graph.type(copies[i]).shape != graph.type(gradients[i].param).shape;
  }
  /// Makes the updates write the 16-bit copies too. Returns the copy of each gradient's parameter: its state,
  /// or the update's result where ranks hold parts.
  std::vector<ir::ValueId> round_updates(passes::OptimizerPlan& plan);
};

}  // namespace trireme::lower
