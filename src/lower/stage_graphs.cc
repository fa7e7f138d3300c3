// The graphs of a pipeline stage in a training step: the stage's parts of the model, and its update.
#include <algorithm>

#include "lower/step_draft.h"
#include "ops/collective/parts.h"
#include "ops/table.h"
#include "passes/partition/partition.h"

namespace trireme::lower {

using ir::ValueId;

namespace {

constexpr const char* kAxis = "pp";

ir::Value described(const ir::Graph& graph, ValueId id) {
  ir::Value v;
  v.name = graph.value(id).name;
  v.type = graph.type(id);
  v.shard = graph.value(id).shard;
  return v;
}

ValueId add_state(ir::Graph& graph, const std::string& name, const ir::Value& like) {
  const ValueId id = graph.add_state(name, like.type);
  graph.value(id).shard = like.shard;
  return id;
}

/// Infers the placements of values that will cross between stages.
void place_activations(ir::Graph& graph) {
  // Updates of running statistics are left out, since the statistics of a micro-batch differ among ranks (see
  // take_statistics).
  ir::Graph without = graph;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    ir::Node& node = without.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op_name() != "ema_update") continue;
    node.op = &ops::table().need("identity");
    node.in = {node.in[1]};
  }
  const std::vector<tensor::Shard> shards = passes::infer_shards(without);
  for (size_t i = 0; i < shards.size(); ++i) graph.value(ValueId(static_cast<uint32_t>(i))).shard = shards[i];
}

}  // namespace

/// Decides where the model is cut, and which stage holds which parameters.
void StepGraphs::cut(const ir::Graph& graph) {
  const int stages = mesh().extent(kAxis);
  const auto parts = static_cast<size_t>(stages * options_.strategy.chunks);
  cut_ = passes::plan_pipeline_cut(graph, parts, options_.strategy.cuts);
  const auto weights = passes::weights_of_parts(graph, cut_);
  for (size_t part = 0; part < weights.size(); ++part) {
    const int holder = static_cast<int>(part) % stages;
    for (const std::string& name : weights[part]) {
      std::vector<int>& held = holders_[name];
      if (std::find(held.begin(), held.end(), holder) != held.end()) {
        base::fail_unsupported("weight '", name, "' is read by two parts of the model on pipeline stage ",
                               holder, "; use fewer chunks or other cuts");
      }
      held.insert(std::upper_bound(held.begin(), held.end(), holder), holder);
    }
  }
}

StageGraph StepGraphs::make_stage(const StepKey& key, std::vector<TrainedParam>& params) {
  Draft draft;
  forward(draft, key);
  place_inputs(draft.graph);
  if (mesh().extent("dp") > 1) place_activations(draft.graph);
  if (holders_.empty()) cut(draft.graph);
  const size_t index = key.chunk * static_cast<size_t>(mesh().extent(kAxis)) + static_cast<size_t>(stage());
  const bool is_last = index + 1 == cut_.parts();
  passes::PipelinePart part = passes::cut_part(draft.graph, cut_, index);
  const std::vector<ValueId> wanted = trained_states(part.graph, params);
  const auto gradients =
      passes::differentiate_part(part, is_last ? part.graph.outputs()[0] : ir::kNoValue, wanted);
  for (ValueId id : wanted) {
    const std::string& name = part.graph.value(id).name;
    const bool is_reached = std::any_of(gradients.begin(), gradients.end(),
                                        [&](const passes::ParamGradient& g) { return g.param == id; });
    for (TrainedParam& p : params) {
      if (p.name == name) p.is_reached = is_reached;
    }
  }
  ir::Graph& graph = draft.graph;
  graph = std::move(part.graph);
  // Only the last part returns loss and counts.
  if (!is_last) draft.counters = 0;
  const std::vector<std::string> crossing = graph.output_names();
  for (const passes::ParamGradient& g : gradients)
    graph.add_output(g.gradient, graph.value(g.param).name + kGradientSuffix);
  take_statistics(draft);
  split_over_ranks(draft);
  choose_parts(draft);
  share_out_params(draft);
  add_sums(draft, key);
  stage_sums_[key] = sums_of(draft, key.micro_batches);
  // Crossing values remain outputs; sums become states.
  std::vector<ValueId> outputs;
  for (size_t i = draft.counters; i < crossing.size(); ++i) outputs.push_back(output_of(graph, crossing[i]));
  graph.set_outputs(outputs, {crossing.begin() + static_cast<ptrdiff_t>(draft.counters), crossing.end()});
  return {settle(draft, false), part.in, part.out};
}

StageSums StepGraphs::sums_of(const Draft& draft, size_t micro_batches) const {
  const ir::Graph& graph = draft.graph;
  const auto sum_of = [&](const std::string& name) {
    return described(graph, state_of(graph, passes::lowest_sum(name, micro_batches)));
  };
  StageSums out;
  for (size_t i = 0; i < draft.gradients.size(); ++i) {
    StageSums::Param p{
        draft.names[i], draft.dims[i], draft.kinds[i], described(graph, draft.gradients[i].param), {}, {}};
    if (draft.copies[i] != ir::kNoValue) p.copy = described(graph, draft.copies[i]);
    p.sum = sum_of(p.name);
    out.params.push_back(std::move(p));
  }
  for (const Draft::Statistic& s : draft.statistics) {
    const ValueId state = state_of(training_, s.state);
    out.statistics.push_back({s.state, s.from, s.keep, described(training_, state), sum_of(s.state)});
  }
  for (size_t i = 0; i < draft.counters; ++i) out.counters.push_back(sum_of(training_.output_names()[i]));
  return out;
}

/// Only the last stage knows loss and counts; the others contribute zeros to the sum over stages.
void StepGraphs::share_counters(Draft& draft, const std::vector<StageSums>& parts) const {
  ir::Graph& graph = draft.graph;
  const bool is_last = !parts.back().counters.empty();
  const size_t first = draft.gradients.size() + draft.statistics.size();
  std::vector<ValueId> in;
  for (size_t i = 0; i < draft.counters; ++i) {
    ValueId mine = ir::kNoValue;
    if (is_last) {
      mine = draft.sums[first + i].value;
    } else {
      mine = graph.add_constant(tensor::Tensor::zeros(training_.type(training_.outputs()[i]).dtype, {}));
      draft.sums.push_back({training_.output_names()[i], mine, -1, false});
    }
    in.push_back(mine);
  }
  const auto out = graph.add(ops::table().need("all_reduce"), in,
                             ops::group_attrs(mesh(), place_.coordinates, kAxis), in.size(), "loss");
  for (size_t i = 0; i < out.size(); ++i) draft.sums[first + i].value = out[i];
}

std::vector<StageSums> StepGraphs::parts_of(const StepKey& key) const {
  std::vector<StageSums> parts;
  for (int c = 0; c < options_.strategy.chunks; ++c) {
    StepKey of = key;
    of.part = StepPart::stage;
    of.chunk = static_cast<size_t>(c);
    parts.push_back(stage_sums_.at(of));
  }
  return parts;
}

std::string tied_sum(const std::string& param) { return param + ".tied"; }

StepGraph StepGraphs::make_tied(const StepKey& key) {
  Draft draft;
  ir::Graph& graph = draft.graph;
  graph.name = "tied";
  graph.mesh = mesh();
  for (const StageSums& part : parts_of(key)) {
    for (const StageSums::Param& p : part.params) {
      if (!is_tied(p.name)) continue;
      const std::string lowest = passes::lowest_sum(p.name, key.micro_batches);
      draft.sums.push_back({p.name, add_state(graph, lowest, p.sum), p.dim});
    }
  }
  sum_up(draft, key);
  for (const passes::StepSum& s : draft.sums) {
    tied_sums_[s.name] = described(graph, s.value);
    graph.add_output(s.value, tied_sum(s.name));
  }
  return settle(draft, false);
}

StepGraph StepGraphs::make_update(const StepKey& key) {
  Draft draft;
  ir::Graph& graph = draft.graph;
  graph.name = "update";
  graph.mesh = mesh();
  const std::vector<StageSums> parts = parts_of(key);
  const auto sum = [&](const std::string& name, const ir::Value& like) {
    return add_state(graph, passes::lowest_sum(name, key.micro_batches), like);
  };
  // First the gradients of all parts, then statistics, then counters, in the order that add_update() expects.
  std::vector<size_t> tied;  // indices of gradients
  for (const StageSums& part : parts) {
    for (const StageSums::Param& p : part.params) {
      const bool is_low = !p.copy.name.empty();
      if (is_tied(p.name)) tied.push_back(draft.gradients.size());
      draft.gradients.push_back({add_state(graph, p.name, p.param), ir::kNoValue});
      draft.gradients.back().is_counted = holders_.at(p.name).front() == stage();
      draft.names.push_back(p.name);
      draft.dims.push_back(p.dim);
      draft.kinds.push_back(p.kind);
      draft.copies.push_back(is_low ? add_state(graph, p.copy.name, p.copy) : ir::kNoValue);
      if (!is_tied(p.name)) draft.sums.push_back({p.name, sum(p.name, p.sum), p.dim});
    }
  }
  for (const StageSums& part : parts) {
    for (const StageSums::Statistic& s : part.statistics) {
      draft.statistics.push_back({s.state, s.keep, s.from});
      draft.sums.push_back({s.state, sum(s.state, s.sum), -1, false});
      add_state(graph, s.state, s.value);
    }
  }
  const auto& names = training_.output_names();
  for (size_t i = 0; i < parts.back().counters.size(); ++i)
    draft.sums.push_back({names[i], sum(names[i], parts.back().counters[i]), -1, false});
  sum_up(draft, key);
  for (size_t i : tied) {
    const std::string& name = draft.names[i];
    const ValueId held = add_state(graph, tied_sum(name), tied_sums_.at(name));
    draft.sums.insert(draft.sums.begin() + static_cast<ptrdiff_t>(i), {name, held, draft.dims[i]});
  }
  draft.counters = names.size();
  share_counters(draft, parts);
  add_update(draft, key);
  return settle(draft, true);
}

}  // namespace trireme::lower
