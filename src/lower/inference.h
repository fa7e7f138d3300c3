// From a graph with static shapes to the program of one rank for inference.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/memory/shared_cache.h"
#include "compile/program.h"
#include "lower/step_options.h"
#include "passes/pipeline/pipeline.h"
#include "passes/precision/weights.h"

namespace trireme::lower {

/// What decides programs for inference besides the graph. Of the strategy it is the precision; RankPart has
/// done the rest.
struct InferenceTarget {
  compile::CompileOptions compile;
  passes::PassOptions passes = {};
  passes::Strategy strategy = {};
};

struct LoweredInference {
  std::shared_ptr<const compile::Program> program;  ///< planned: bind_weights() makes it run
  int64_t folded_bytes = 0;  ///< of constants that `model` does not have: made for these shapes
};

/// The passes of a bucket, weights side by side, precision, kernels and memory. `packs` shares what is made
/// of weights between all programs of a model or of a rank's part. `model`: the graph that `bound` is of.
/// Weights need no content (tensor/absent.h); where they have it, passes that fold or round them read it.
LoweredInference lower_inference(ir::Graph bound, const InferenceTarget& target, base::SharedCache& packs,
                                 const ir::Graph& model);

/// The program with its weights packed, once for all programs that share `packs`, and those that it reads at
/// hand.
std::shared_ptr<const compile::Program> bind_weights(std::shared_ptr<const compile::Program> plan,
                                                     const compile::Binding& with);

/// What one rank computes of a model that several hold: its stage of the pipeline, its parts of the weights.
/// Programs of all shapes share the parts. Used by one thread at a time.
class RankPart {
 public:
  /// `strategy` spreads over tp and pp, kv_ranks chosen; each rank stores its part of the weights as it says.
  /// Throws what Strategy::check() refuses.
  RankPart(passes::Strategy strategy, int rank);

  /// Returns this rank's part of `whole`, a bound graph in global shapes before fusion. All ranks get the
  /// same collectives. `placed`: shards of values to split, by name, inputs and outputs included; null:
  /// weights, as the strategy says.
  passes::PipelinePart of(ir::Graph whole, const std::map<std::string, tensor::Shard>* placed = nullptr);

  /// On the CPU: packs the block-format weights of a graph that of() returned, once for all programs, and
  /// releases the originals. Returns true for the first graph; later graphs find every part packed.
  bool hold_packed(ir::Graph& graph, base::SharedCache& packs, int threads);

  const RankPlace& place() const { return place_; }
  int stage() const { return place_.on("pp"); }
  int stages() const { return strategy_.pp; }
  const passes::WeightReport& stored() const { return report_; }
  /// Of several tp ranks: how the outputs of the graph that of() gave last are placed.
  const std::vector<tensor::Shard>& outputs() const { return outputs_; }

 private:
  void share_weights(ir::Graph& graph);

  passes::Strategy strategy_;
  RankPlace place_;
  std::optional<passes::PipelineCut> cut_;         ///< the same for all shapes
  std::map<std::string, tensor::Tensor> weights_;  ///< this rank's parts, by name
  passes::StoredWeightCache stored_;
  passes::WeightReport report_;
  std::vector<std::shared_ptr<const void>> held_;  ///< packed matrices whose originals are gone
  std::set<const std::byte*> addresses_;           ///< of the originals, keys of the packed ones
  bool has_held_ = false;
  std::vector<tensor::Shard> outputs_;
};

}  // namespace trireme::lower
