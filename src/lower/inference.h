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

/// The settings, besides the graph, that determine the program of an inference bucket.
struct InferenceTarget {
  compile::CompileOptions compile;
  passes::PassOptions passes = {};
  passes::Precision precision = passes::Precision::f32;  ///< of matrix products; outputs keep their types
};

struct LoweredInference {
  std::shared_ptr<const compile::Program> program;
  int64_t folded_bytes = 0;  ///< size of the constants that were computed for these shapes alone
};

/// Lowers one bucket: passes, joined weights, precision, kernels, memory plan. `packs` shares copies of
/// weights between all programs of a model or of one rank's part. `bound` is `model` with this bucket's
/// sizes.
LoweredInference lower_inference(ir::Graph bound, const InferenceTarget& target, base::SharedCache& packs,
                                 const ir::Graph& model);

/// The part of a model that one of several ranks computes: its pipeline stage and its parts of the weights.
/// The programs of all buckets share these parts. To be used by one thread at a time.
class RankPart {
 public:
  /// `strategy` has its tensor and pipeline extents and kv_ranks set. `stored` says in which format each rank
  /// stores its part of the weight matrices. Throws invalid_argument for data-parallel ranks.
  RankPart(passes::Strategy strategy, int rank, passes::WeightOptions stored = {});

  /// Returns this rank's part of `whole`, a bound graph in global shapes before fusion. All ranks get the
  /// same collectives. `placed`: shards of values to split, by name; null: weights, as the strategy says.
  passes::PipelinePart of(ir::Graph whole, const std::map<std::string, tensor::Shard>* placed = nullptr);

  /// On the CPU: packs the block-format weights of a graph that of() returned, once for all programs, and
  /// releases the originals. Returns true for the first graph; later graphs find every part packed.
  bool hold_packed(ir::Graph& graph, base::SharedCache& packs, int threads);

  const RankPlace& place() const { return place_; }
  int stage() const { return place_.on("pp"); }
  int stages() const { return strategy_.pp; }
  const passes::WeightReport& stored() const { return report_; }

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
  std::set<const std::byte*> addresses_;           ///< of the originals, keys of the packed ones
  bool has_held_ = false;
};

}  // namespace trireme::lower
