// How a graph becomes programs: the mesh and what splits over it, precision, what is computed again, how
// weights are stored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/text/options.h"
#include "passes/strategy_options.h"
#include "tensor/mesh.h"

namespace trireme::passes {

/// Splits parameters whose name matches `pattern` (name_matches) along `dim` over mesh axis `axis`. The first
/// rule that matches a name and an axis applies; parameters that match a rule are not split automatically.
struct ShardRule {
  std::string pattern;
  std::string axis;  ///< "tp"; "tpr" where fewer key/value heads than ranks: see Strategy::kv_ranks
  int dim = 0;       ///< -1: whole
  int sections = 1;  ///< equal sections, each split: packed q, k, v
};
/// "pattern:axis:dim" or "pattern:axis:dim/sections"; "pattern:whole". Throws invalid_argument otherwise.
ShardRule parse_shard_rule(std::string_view text);

enum class PipelineSchedule { gpipe, one_f_one_b, interleaved, zero_bubble };

/// What programs are made for.
enum class Purpose { training, inference, decoding };

/// Axes of the mesh, in this order, the last one fastest: pp, dp, tpr, tp. Tensor-parallel ranks are tpr x
/// tp: tp alone splits key/value heads, both split query heads and everything else that is tensor parallel.
struct Strategy {
  int dp = 1, tp = 1, pp = 1;  ///< ranks; world = dp x tp x pp
  int ep = 1;                  ///< tp: the tp ranks share out whole experts; 1: each has a part of all
  int kv_ranks = 0;            ///< tp ranks that key/value heads are split over; 0: all of tp
  int zero = 0;           ///< ZeRO stage: split over dp 0 nothing, 1 optimizer, 2 + gradients, 3 + weights
  bool sequence = false;  ///< norms, dropout and residuals split along the sequence over tp
  bool automatic = true;  ///< split weights that no rule matches where the graph shows how
  std::vector<std::string> rules = {};  ///< as parse_shard_rule reads them
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 1;                      ///< model parts on each stage (interleaved)
  std::vector<std::string> cuts = {};  ///< layers at which pipeline stages begin; if empty, by cost
  double bucket_mb = 4;                ///< gradients are reduced in buckets of about this size
  bool overlap = true;                 ///< collectives run beside the computation; the bits are the same
  PrecisionOptions precision = {};
  RecomputeOptions recompute = {};  ///< of training
  WeightOptions weights = {};       ///< of inference and decoding

  int world() const { return dp * tp * pp; }
  /// This strategy's precision, recomputation and form of weights over the ranks of `other`.
  Strategy over(Strategy other) const;
  /// Throws invalid_argument for numbers that do not fit each other.
  tensor::MeshShape mesh() const;
  /// Refuses what cannot be together, with the reason; no other place does. Throws invalid_argument where the
  /// combination means nothing, unsupported where there is no way of running it.
  void check(Purpose purpose) const;
  /// Keys of the section `parallel` and of a strategy file: the mesh and what splits over it.
  void fields(base::OptionList& f);
};

}  // namespace trireme::passes
