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

/// What decides programs for inference besides the graph.
struct InferenceTarget {
  compile::CompileOptions compile;
  passes::PassOptions passes = {};
  passes::Precision precision = passes::Precision::f32;  ///< of products; results keep their types
};

struct LoweredInference {
  std::shared_ptr<const compile::Program> program;
  int64_t folded_bytes = 0;  ///< of constants that `model` does not have: made for these shapes
};

/// The passes of a bucket, weights side by side, precision, kernels and memory. `packs` shares what is made
/// of weights between all programs of a model or of a rank's part. `model`: the graph that `bound` is of.
LoweredInference lower_inference(ir::Graph bound, const InferenceTarget& target, base::SharedCache& packs,
                                 const ir::Graph& model);

/// What one rank computes of a model that several hold: its stage of the pipeline, its parts of the weights.
/// Programs of all shapes share the parts. Used by one thread at a time.
class RankPart {
 public:
  /// `strategy` spreads over tp and pp, kv_ranks chosen. `stored`: how matrices under products are stored,
  /// each rank its part of them. Throws invalid_argument for data-parallel ranks.
  RankPart(passes::Strategy strategy, int rank, passes::WeightOptions stored = {});

  /// `whole`: bound, in global shapes, not yet fused. Deterministic: the ranks' programs meet in the same
  /// collectives. `placed`: what ranks split, by name, inputs and outputs too; null: the weights, as the
  /// strategy says.
  passes::PipelinePart of(ir::Graph whole, const std::map<std::string, tensor::Shard>* placed = nullptr);

  /// On the CPU: weights in blocks of a graph that of() gave stay in packed form, once for all programs;
  /// what they were packed from is let go. True for the first graph: later ones find all parts made.
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
  passes::WeightOptions store_;
  std::optional<passes::PipelineCut> cut_;         ///< the same for all shapes
  std::map<std::string, tensor::Tensor> weights_;  ///< this rank's parts, by name
  passes::StoredWeightCache stored_;
  passes::WeightReport report_;
  std::vector<std::shared_ptr<const void>> held_;  ///< packed matrices whose originals are gone
  std::set<const std::byte*> addresses_;           ///< by which kernels find them
  bool has_held_ = false;
  std::vector<tensor::Shard> outputs_;
};

}  // namespace trireme::lower
