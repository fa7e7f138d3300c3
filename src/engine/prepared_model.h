// A model after the passes that do not depend on shapes, which all its sessions share.
#pragma once

#include <string>
#include <vector>

#include "base/memory/shared_cache.h"
#include "ir/graph.h"
#include "passes/pass.h"
#include "passes/precision/weights.h"
#include "passes/strategy.h"

namespace trireme::engine {

/// A model after the passes that do not depend on shapes, with the packed weights all sessions share.
/// Immutable but for the cache, which locks itself; make one per model and share it.
class PreparedModel {
 public:
  /// `strategy`: how matrices under products are stored; where several ranks hold the model, each stores its
  /// part of them.
  explicit PreparedModel(ir::Graph graph, const passes::PassOptions& options = {},
                         passes::Strategy strategy = {});
  const ir::Graph& graph() const { return graph_; }
  base::SharedCache& packs() const { return packs_; }
  const std::vector<passes::PassRecord>& records() const { return records_; }
  const passes::WeightReport& weights() const { return weights_; }
  const passes::Strategy& strategy() const { return strategy_; }

 private:
  ir::Graph graph_;
  std::vector<passes::PassRecord> records_;
  passes::WeightReport weights_;
  passes::Strategy strategy_;
  mutable base::SharedCache packs_;
};

/// Makes f32 of weights in 16-bit floats where their products will not read them as they are: operands of
/// another precision, matrices stored in another form, or a device, which has no such products; there 8-bit
/// floats become f32, too. To be called before a model is prepared.
void widen_floats_for(ir::Graph& graph, const passes::Strategy& strategy, const std::string& device);

}  // namespace trireme::engine
