// Lowers a graph with static shapes to the program of one rank for inference.
#include "lower/inference.h"

#include <unordered_set>
#include <utility>

#include "lower/joined_weights.h"
#include "lower/low_precision.h"
#include "lower/rounded_weights.h"
#include "ops/blocks/blocks.h"
#include "passes/cleanup/open_experts.h"
#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/partition/partition.h"
#include "passes/partition/shard_rules.h"
#include "passes/train/train.h"

namespace trireme::lower {
namespace {

/// Bytes of the constants of `graph` that are not in `model`, of which it is a part.
int64_t new_constant_bytes(const ir::Graph& model, const ir::Graph& graph) {
  std::unordered_set<const std::byte*> known;
  for (const ir::Value& v : model.values()) known.insert(v.data.defined() ? v.data.raw() : nullptr);
  int64_t bytes = 0;
  for (const ir::Value& v : graph.values())
    bytes += v.data.defined() && !known.contains(v.data.raw()) ? v.data.bytes() : 0;
  return bytes;
}

}  // namespace

LoweredInference lower_inference(ir::Graph bound, const InferenceTarget& target, base::SharedCache& packs,
                                 const ir::Graph& model) {
  const tensor::DeviceKind on = target.compile.on;
  if (on != tensor::DeviceKind::cpu) passes::open_expert_products(bound);
  passes::run_passes(passes::bucket_passes(), bound, target.passes);
  LoweredInference made;
  made.folded_bytes = new_constant_bytes(model, bound);
  const passes::PrecisionOptions& precision = target.strategy.precision;
  const bool packs_parts = precision.compute == passes::Precision::f32 && on == tensor::DeviceKind::cpu;
  join_weights(bound, packs, packs_parts);
  lower_for_inference(bound, precision, on, packs);
  passes::run_passes(passes::inference_passes(on), bound, target.passes);
  made.program = std::make_shared<const compile::Program>(compile::plan(bound, target.compile, packs));
  return made;
}

std::shared_ptr<const compile::Program> bind_weights(std::shared_ptr<const compile::Program> plan,
                                                     const compile::Binding& with) {
  std::shared_ptr<const compile::Program> bound = compile::bind(std::move(plan), with);
  fill_read_weights(*bound, with.packs);
  fill_read_joined(*bound, with.packs);
  return bound;
}

RankPart::RankPart(passes::Strategy strategy, int rank)
    : strategy_(std::move(strategy)), place_{strategy_.mesh(), {}} {
  strategy_.check(passes::Purpose::inference);
  place_.coordinates = place_.mesh.coordinates(rank);
}

/// All programs share their weights: one copy of each part, packed once.
void RankPart::share_weights(ir::Graph& graph) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || v.name.empty()) continue;
    const auto [at, is_new] = weights_.emplace(v.name, v.data);
    if (!is_new && at->second.type() == v.data.type()) v.data = at->second;
  }
}

bool RankPart::hold_packed(ir::Graph& graph, base::SharedCache& packs, int threads) {
  for (const auto& [id, format] : ops::packed_weights(graph)) {
    ir::Value& v = graph.value(id);
    if (v.kind != ir::ValueKind::param || addresses_.contains(v.data.raw())) continue;
    ops::HeldBlocks held = ops::hold_packed(v.data, *format, packs, threads);
    v.data = held.address;
    weights_[v.name] = held.address;
    addresses_.insert(held.address.raw());
    held_.push_back(std::move(held.packed));
  }
  return !std::exchange(has_held_, true);
}

passes::PipelinePart RankPart::of(ir::Graph whole, const std::map<std::string, tensor::Shard>* placed) {
  passes::run_passes(passes::forward_passes(), whole);
  whole.sort();
  std::map<std::string, tensor::Shard> weights;
  if (placed == nullptr) weights = passes::place_params(whole, strategy_);
  passes::PipelinePart part{.graph = std::move(whole), .in = {}, .out = {}};
  if (stages() > 1) {
    if (!cut_) cut_ = passes::plan_pipeline_cut(part.graph, static_cast<size_t>(stages()), strategy_.cuts);
    part = passes::cut_part(part.graph, *cut_, static_cast<size_t>(stage()));
  }
  if (strategy_.tp > 1) {
    part.graph = passes::partition(
        part.graph, {.mesh = place_.mesh,
                     .coordinates = place_.coordinates,
                     .placed = placed == nullptr ? weights : *placed,
                     .outputs = placed == nullptr ? std::map<std::string, tensor::Shard>{} : *placed,
                     .untouched = {"pp"}});
    const std::vector<tensor::Shard> shards = passes::infer_shards(part.graph);
    outputs_.clear();
    for (const ir::ValueId id : part.graph.outputs()) outputs_.push_back(shards[ir::index(id)]);
    passes::fix_collective_order(part.graph);
    share_weights(part.graph);
  }
  if (strategy_.weights.stores()) report_ = passes::store_weights(part.graph, strategy_.weights, &stored_);
  return part;
}

}  // namespace trireme::lower
