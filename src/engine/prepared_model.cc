// A model after the passes that do not depend on shapes.
#include "engine/prepared_model.h"

#include <utility>

#include "passes/lists/lists.h"

namespace trireme::engine {

PreparedModel::PreparedModel(ir::Graph graph, const passes::PassOptions& options,
                             const passes::WeightOptions& weights, int ranks)
    : graph_(std::move(graph)) {
  graph_.sort();
  records_ = passes::run_passes(passes::prepare_passes(), graph_, options);
  if (ranks > 1) {
    by_ranks_ = weights;
  } else if (weights.stores()) {
    weights_ = passes::store_weights(graph_, weights);
  }
}

}  // namespace trireme::engine
