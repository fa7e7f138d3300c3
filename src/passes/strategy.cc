// Checks and keys of a strategy.
#include "passes/strategy.h"

#include <charconv>

#include "base/error.h"

namespace trireme::passes {

tensor::MeshShape Strategy::mesh() const {
  base::require(dp >= 1 && tp >= 1 && pp >= 1, "ranks on an axis: at least 1");
  base::require(zero >= 0 && zero <= 3, "zero: 0 to 3, not ", zero);
  base::require(kv_ranks >= 0 && (kv_ranks == 0 || tp % kv_ranks == 0), "tp = ", tp,
                " is no multiple of kv_ranks = ", kv_ranks);
  base::require(chunks >= 1 && (chunks == 1 || schedule == PipelineSchedule::interleaved),
                "chunks are of the interleaved schedule");
  base::require(ep == 1 || ep == tp, "ep = ", ep, " with tp = ", tp,
                ": the tp ranks share out experts, so that ep is 1 or the same number");
  const int kv = kv_ranks == 0 ? tp : kv_ranks;
  return tensor::MeshShape({{"pp", pp}, {"dp", dp}, {"tpr", tp / kv}, {"tp", kv}});
}

Strategy Strategy::over(Strategy other) const {
  other.precision = precision;
  other.recompute = recompute;
  other.weights = weights;
  return other;
}

void Strategy::check(Purpose purpose) const {
  mesh();
  if (purpose == Purpose::training) {
    if (ep > 1)
      base::fail_unsupported("training with ep = ", ep,
                             ": experts are shared out for inference; leave it out");
    if (weights.stores())
      base::fail_unsupported(
          "training on weights in 8 or 4 bits: they are for inference; the optimizer's stay f32");
    return;
  }
  if (purpose == Purpose::decoding && (dp > 1 || sequence))
    base::fail_unsupported("ranks that decode together split heads (tp) and layers (pp); dp=", dp,
                           ", sequence=", sequence);
  base::require(dp == 1, "ranks of one model are tensor parallel and pipeline stages; dp=", dp,
                " is for training, instances serve several batches at a time");
  base::require(!recompute.is_on(), "recompute is for training: inference keeps nothing for a backward pass");
}

ShardRule parse_shard_rule(std::string_view text) {
  const auto fail = [&]() {
    base::fail_invalid("a shard rule is pattern:axis:dim, pattern:axis:dim/sections or pattern:whole, not '",
                       text, "'");
  };
  // Names of imported weights may contain colons, so fields are split off from the end.
  const size_t last = text.rfind(':');
  if (last == std::string_view::npos || last == 0) fail();
  const std::string_view end = text.substr(last + 1);
  if (end == "whole") return {.pattern = std::string(text.substr(0, last)), .axis = "tp", .dim = -1};
  const size_t middle = text.rfind(':', last - 1);
  if (middle == std::string_view::npos || middle == 0) fail();
  ShardRule rule{.pattern = std::string(text.substr(0, middle)),
                 .axis = std::string(text.substr(middle + 1, last - middle - 1))};
  const auto number = [&](std::string_view digits) {
    int value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size() || value < 0) fail();
    return value;
  };
  const size_t slash = end.find('/');
  rule.dim = number(end.substr(0, slash));
  if (slash != std::string_view::npos) rule.sections = number(end.substr(slash + 1));
  base::require(rule.axis == "tp" || rule.axis == "tpr", "shard rule '", text, "': the axis is tp or tpr");
  base::require(rule.sections >= 1, "shard rule '", text, "': sections are at least 1");
  return rule;
}

void Strategy::fields(base::OptionList& f) {
  constexpr int kMostRanks = 4096;
  f.add("dp", &dp, "data-parallel ranks: each takes its own micro-batches").at_least(1).at_most(kMostRanks);
  f.add("tp", &tp, "tensor-parallel ranks: each holds a part of the large weights")
      .at_least(1)
      .at_most(kMostRanks);
  f.add("pp", &pp, "pipeline stages: each holds some of the layers").at_least(1).at_most(kMostRanks);
  f.add("ep", &ep, "of inference: the tp ranks share out whole experts; 1, or as many as tp").at_least(1);
  f.add("kv_ranks", &kv_ranks, "tensor-parallel ranks that key/value heads are split over; 0: all")
      .at_least(0);
  f.add("zero", &zero,
        "what data-parallel ranks share out: 0 nothing, 1 the optimizer, 2 gradients too, 3 weights")
      .at_least(0)
      .at_most(3);
  f.add("sequence", &sequence, "norms, dropout and residuals are split along the sequence over tp");
  f.add("automatic", &automatic, "weights that no rule names are split where the graph shows how");
  f.add("rules", &rules,
        "weights to split, pattern:axis:dim[/sections] or pattern:whole; others as their model's kind says");
  f.add_choice("schedule", &schedule, {"gpipe", "1f1b", "interleaved", "zero_bubble"},
               "order of micro-batches in the pipeline");
  f.add("chunks", &chunks, "model parts on each stage (interleaved)").at_least(1);
  f.add("cuts", &cuts, "layers at which pipeline stages begin; none: cut by cost");
  f.add("bucket_mb", &bucket_mb, "gradients are reduced in buckets of about so many MiB").at_least(0);
  f.add("overlap", &overlap, "collectives run beside the computation; results are the same bits");
}

}  // namespace trireme::passes
