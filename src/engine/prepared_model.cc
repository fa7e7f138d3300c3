// A model after all passes that do not depend on shapes.
#include "engine/prepared_model.h"

#include <utility>

#include "passes/lists/lists.h"
#include "passes/precision/stored_products.h"

namespace trireme::engine {

PreparedModel::PreparedModel(ir::Graph graph, const passes::PassOptions& options, passes::Strategy strategy)
    : graph_(std::move(graph)), strategy_(std::move(strategy)) {
  graph_.sort();
  records_ = passes::run_passes(passes::prepare_passes(), graph_, options);
  if (strategy_.world() == 1 && strategy_.weights.stores())
    weights_ = passes::store_weights(graph_, strategy_.weights);
}

void widen_floats_for(ir::Graph& graph, const passes::Strategy& strategy, const std::string& device) {
  const bool is_device = device != "cpu";
  const bool is_as_stored = strategy.precision.compute == passes::Precision::f32 &&
                            strategy.weights.weights == passes::WeightBits::f32;
  if (is_device || !is_as_stored) passes::widen_stored_floats(graph, is_device);
}

}  // namespace trireme::engine
