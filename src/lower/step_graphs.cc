// The graphs of a training step on one rank.
#include "lower/step_graphs.h"

#include <algorithm>
#include <optional>

#include "lower/known_branches.h"
#include "lower/step_draft.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/train/update_copies.h"
#include "passes/partition/partition.h"
#include "passes/partition/shard_rules.h"
#include "passes/partition/vocab_parallel.h"
#include "passes/partition/whole_values.h"
#include "passes/precision/precision.h"

namespace trireme::lower {

using ir::ValueId;

namespace {

/// The state of this name; added with the type of `mean` if a pass dropped it because nothing read it.
ValueId running_state(ir::Graph& graph, const std::string& name, ValueId mean) {
  const auto is_it = [&](const ir::Value& v) { return v.kind == ir::ValueKind::state && v.name == name; };
  if (std::any_of(graph.values().begin(), graph.values().end(), is_it)) return state_of(graph, name);
  const ValueId state = graph.add_state(name, graph.type(mean));
  graph.value(state).shard = graph.value(mean).shard;
  return state;
}

}  // namespace

void check_shards(const ir::Graph& graph) {
  const std::vector<tensor::Shard> shards = passes::infer_shards(graph);
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const tensor::Shard& shard = shards[ir::index(graph.outputs()[i])];
    base::require(shard.is_replicated(), "output '", graph.output_names()[i], "' is ",
                  shard.to_string(graph.mesh), ": a reduction over the ranks is missing");
  }
}

StepGraphs::StepGraphs(const ir::Graph& training, const StepOptions& options, const RankPlace& place)
    : training_(training), options_(options), place_(place) {}

void StepGraphs::place_inputs(ir::Graph& graph) const {
  graph.mesh = mesh();
  if (mesh().extent("dp") == 1) return;
  const size_t axis = mesh().index_of("dp");
  for (size_t i = 0; i < training_.inputs().size() && i < graph.inputs().size(); ++i) {
    ir::Value& v = graph.value(graph.inputs()[i]);
    // Random numbers of a rank start at its own first row; everything else is a part of the batch.
    const bool is_rng = v.name == passes::kRngInput;
    if (is_rng || v.type.shape.rank() > 0)
      v.shard.set(axis, is_rng ? tensor::Placement::own() : tensor::Placement::split(0));
  }
}

/// Sums the statistics of micro-batches like gradients, so that running means change once per step.
void StepGraphs::take_statistics(Draft& draft) {
  ir::Graph& graph = draft.graph;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    const ir::Node node = graph.node(id);
    if (node.op == nullptr || node.op_name() != "ema_update") continue;
    const std::string state = graph.value(node.in[0]).name;
    draft.statistics.push_back({state, node.attrs.get_float("keep", 0.9), node.from});
    graph.erase(id);
    graph.add_output(node.in[1], state + kStatisticSuffix);
  }
}

/// Replaces the graph by this rank's part over the tensor-parallel axes: local shapes, collectives, and
/// gradients with the placements of their parameters.
void StepGraphs::split_over_ranks(Draft& draft) const {
  if (tensor_ranks() == 1) return;
  passes::Partitioning how{
      .mesh = mesh(), .coordinates = place_.coordinates, .placed = placed_, .untouched = {"pp", "dp"}};
  if (options_.strategy.sequence) how.sequence_axis = "tp";
  for (const auto& [name, shard] : placed_) {
    how.outputs[name + kGradientSuffix] = shard;
    how.outputs[name + kStatisticSuffix] = shard;
  }
  draft.graph.sort();
  passes::split_classes(draft.graph, placed_, mesh());
  draft.graph = passes::partition(draft.graph, how);
}

void StepGraphs::forward(Draft& draft, const StepKey& key) {
  std::vector<tensor::Dims> all = key.shapes;
  for (size_t i = all.size(); i < training_.inputs().size(); ++i) {
    all.push_back(training_.type(training_.inputs()[i]).shape.to_dims());
  }
  ir::Graph& graph = draft.graph;
  graph = passes::bind_shapes(training_, all);
  open_known_branches(graph);  // of conditions that shapes decide
  // Random numbers are placed by the rows of the first input (StepInputs::first_row).
  passes::number_masks(graph, key.shapes.empty() || key.shapes[0].empty() ? 1 : key.shapes[0][0]);
  passes::run_passes(passes::forward_passes(), graph, options_.passes);
  if (options_.strategy.precision.compute != passes::Precision::f32) {
    draft.made.precision_text = passes::lower_precision(graph, options_.strategy.precision).text();
    graph.sort();
  }
  if (tensor_ranks() > 1 && placed_.empty()) placed_ = passes::place_params(graph, options_.strategy);
  draft.counters = graph.outputs().size();
}

std::vector<ValueId> trained_states(const ir::Graph& graph, const std::vector<TrainedParam>& params) {
  std::vector<ValueId> wanted;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& v = graph.values()[i];
    const auto is_it = [&](const TrainedParam& p) { return p.name == v.name; };
    if (v.kind == ir::ValueKind::state && std::any_of(params.begin(), params.end(), is_it))
      wanted.push_back(ValueId(static_cast<uint32_t>(i)));
  }
  return wanted;
}

void StepGraphs::differentiate(Draft& draft, std::vector<TrainedParam>& params) {
  ir::Graph& graph = draft.graph;
  const auto gradients = passes::differentiate(graph, graph.outputs()[0], trained_states(graph, params));
  for (TrainedParam& p : params) {
    p.is_reached = std::any_of(gradients.begin(), gradients.end(), [&](const passes::ParamGradient& g) {
      return graph.value(g.param).name == p.name;
    });
  }
  for (const passes::ParamGradient& g : gradients)
    graph.add_output(g.gradient, graph.value(g.param).name + kGradientSuffix);
  take_statistics(draft);
}

/// Extents of a weight after tensor parallelism. An extent is 1 if its parts have unequal lengths; ZeRO does
/// not cut it, so that all ranks decide alike.
tensor::Dims StepGraphs::even_parts(const ir::Value& v) const {
  tensor::Dims dims = training_.type(state_of(training_, v.name)).shape.to_dims();
  for (size_t a = 0; a < mesh().axes().size(); ++a) {
    const tensor::Placement p = v.shard.on(a);
    if (!p.is_split()) continue;
    int64_t& extent = dims[static_cast<size_t>(p.dim)];
    extent = extent % mesh().axes()[a].extent == 0 ? extent / mesh().axes()[a].extent : 1;
  }
  return dims;
}

/// Lists parameters in the reverse order of first use, and chooses the dimension of each that ZeRO cuts.
void StepGraphs::choose_parts(Draft& draft) {
  ir::Graph& graph = draft.graph;
  std::vector<ValueId> params;
  for (const std::string& output : graph.output_names()) {
    if (!output.ends_with(kGradientSuffix)) continue;
    params.push_back(state_of(graph, output.substr(0, output.size() - std::string(kGradientSuffix).size())));
  }
  const std::vector<size_t> first = passes::first_uses(graph, params);
  std::vector<size_t> order(params.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return first[a] > first[b]; });
  const auto kinds =
      passes::optimizer_kinds(graph, params, options_.optimizer, passes::embedding_names(training_));
  const int ranks = mesh().extent("dp");
  for (size_t i : order) {
    const ir::Value& v = graph.value(params[i]);
    const tensor::Dims dims = even_parts(v);
    const int dim = options_.strategy.zero > 0 ? passes::zero_dim(dims, v.shard, ranks) : -1;
    draft.names.push_back(v.name);
    draft.kinds.push_back(kinds[i]);
    draft.gradients.push_back({params[i], output_of(graph, v.name + kGradientSuffix)});
    draft.dims.push_back(dim >= 0 && passes::updates_parts(kinds[i], dims, dim, ranks) ? dim : -1);
  }
}

/// Adds ZeRO's parts of the parameters, and what the forward pass reads instead of whole parameters: where it
/// needs 16 bits, the copies that the previous update wrote.
void StepGraphs::share_out_params(Draft& draft) {
  ir::Graph& graph = draft.graph;
  const auto bucket = static_cast<int64_t>(options_.strategy.bucket_mb * (1 << 20));
  draft.copies.assign(draft.gradients.size(), ir::kNoValue);
  std::vector<passes::ZeroParam> gathered;
  std::vector<size_t> which;
  const auto take = [&](size_t i, const passes::ReadParam& read) {
    draft.gradients[i].param = read.param;
    draft.copies[i] = read.copy;
    if (read.copy != ir::kNoValue) draft.made.copies[graph.value(read.copy).name] = draft.names[i];
  };
  for (size_t i = draft.gradients.size(); i-- > 0;) {  // in forward order
    const passes::ZeroParam p{draft.gradients[i].param, draft.dims[i]};
    if (p.dim >= 0 && options_.strategy.zero == 3) {
      gathered.push_back(p);
      which.push_back(i);
    } else if (!draft.is_gathered_for_update(i)) {
      take(i, passes::read_low_copy(graph, p));
    }
  }
  const auto parts = passes::gather_params(graph, gathered, place_.coordinates, bucket);
  for (size_t k = 0; k < parts.size(); ++k) take(which[k], parts[k]);
}

void StepGraphs::add_sums(Draft& draft, const StepKey& key) {
  ir::Graph& graph = draft.graph;
  for (size_t i = 0; i < draft.gradients.size(); ++i)
    draft.sums.push_back({draft.names[i], draft.gradients[i].gradient, draft.dims[i]});
  for (const Draft::Statistic& s : draft.statistics)
    draft.sums.push_back(
        {s.state, output_of(graph, s.state + kStatisticSuffix), -1, false, tensor::Placement::own()});
  for (size_t i = 0; i < draft.counters; ++i)
    draft.sums.push_back({graph.output_names()[i], graph.outputs()[i], -1, false});
  sum_up(draft, key);
}

void StepGraphs::sum_up(Draft& draft, const StepKey& key) const {
  const bool is_update = key.part == StepPart::update || key.part == StepPart::tied;
  const passes::StepSums how{.coordinates = place_.coordinates,
                             .micro_batches = key.micro_batches,
                             .is_last = key.part == StepPart::last || is_update,
                             .reduce_each = options_.strategy.zero >= 2,
                             .is_apart = key.part == StepPart::stage || is_update,
                             .bucket_bytes = static_cast<int64_t>(options_.strategy.bucket_mb * (1 << 20))};
  passes::add_step_sums(draft.graph, draft.sums, how);
}

ValueId StepGraphs::mean_loss(ir::Graph& graph, ValueId loss_sum) const {
  const tensor::TensorType scalar{tensor::DType::f32, tensor::Shape{}};
  const ir::OpDef& mul = ops::table().need("mul");
  const ValueId weighted =
      graph.add1(mul, {loss_sum, passes::need_input(graph, passes::kLossWeightInput, scalar)});
  if (!options_.scaled_loss) return weighted;
  return graph.add1(mul, {weighted, passes::need_input(graph, passes::kGradScaleInput, scalar)});
}

/// Gathers a parameter that tensor-parallel ranks split if the optimizer needs all of it.
void StepGraphs::gather_for_update(Draft& draft, size_t i) const {
  ir::Graph& graph = draft.graph;
  passes::ParamGradient& g = draft.gradients[i];
  const tensor::Dims dims = training_.type(state_of(training_, draft.names[i])).shape.to_dims();
  g.target = passes::gather_whole(graph, g.param, dims, place_.coordinates);
  g.gradient = passes::gather_whole(graph, g.gradient, dims, place_.coordinates);
}

/// Describes for the run's record what ZeRO shards and what it does not.
std::string StepGraphs::describe_parts(const Draft& draft) const {
  if (options_.strategy.zero == 0 || mesh().extent("dp") == 1) return "";
  std::string whole;
  for (size_t i = 0; i < draft.names.size(); ++i) {
    if (draft.dims[i] < 0) whole += "  " + draft.names[i] + "\n";
  }
  const auto count = static_cast<size_t>(std::count(draft.dims.begin(), draft.dims.end(), -1));
  return base::concat("zero ", options_.strategy.zero, ": ", draft.names.size() - count, " parameters in ",
                      mesh().extent("dp"), " parts; whole on every rank ", count, "\n", whole);
}

std::vector<ValueId> StepGraphs::Draft::round_updates(passes::OptimizerPlan& plan) {
  std::vector<std::optional<passes::UpdateCopy>> wanted(copies.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i] == ir::kNoValue) continue;
    wanted[i] = {graph.type(copies[i]).dtype, is_shared_copy(i) ? ir::kNoValue : copies[i]};
  }
  return passes::add_update_copies(graph, plan.updated, wanted);
}

/// Distributes the new parts of parameters to their readers.
void StepGraphs::write_back(Draft& draft, const passes::OptimizerPlan& plan,
                            const std::vector<ValueId>& copies) const {
  ir::Graph& graph = draft.graph;
  const size_t count = draft.gradients.size();
  std::vector<passes::NewPart> parts;
  for (size_t i = count; i-- > 0;) {  // in the order in which the next forward pass reads them
    const passes::ParamGradient& g = draft.gradients[i];
    if (g.target != ir::kNoValue && draft.dims[i] >= 0)
      parts.push_back({g.param, plan.updated[i], draft.dims[i]});
    if (draft.is_shared_copy(i)) parts.push_back({draft.copies[i], copies[i], draft.dims[i]});
  }
  for (size_t i = 0; i < count; ++i) {
    const passes::ParamGradient& g = draft.gradients[i];
    if (g.target == ir::kNoValue || draft.dims[i] >= 0) continue;
    const tensor::Shard shard = graph.value(g.param).shard;
    passes::assign_state(graph, g.param,
                         passes::slice_part(graph, plan.updated[i], shard, place_.coordinates));
  }
  passes::gather_updates(graph, parts, place_.coordinates,
                         static_cast<int64_t>(options_.strategy.bucket_mb * (1 << 20)));
}

/// Moves running statistics towards the mean over the step's micro-batches.
void StepGraphs::add_running_statistics(Draft& draft, const passes::OptimizerPlan& plan,
                                        const StepKey& key) const {
  ir::Graph& graph = draft.graph;
  const size_t count = draft.gradients.size();
  const auto terms = static_cast<double>(key.micro_batches) * mesh().extent("dp");
  for (size_t i = 0; i < draft.statistics.size(); ++i) {
    const Draft::Statistic& s = draft.statistics[i];
    ValueId mean = draft.sums[count + i].value;
    const ValueId state = running_state(graph, s.state, mean);
    const ValueId share = graph.add_constant(tensor::Tensor::scalar(static_cast<float>(1 / terms)));
    if (terms > 1) mean = graph.add1(ops::table().need("mul"), {mean, share}, {}, s.from);
    std::vector<ValueId> in{state, mean};
    if (plan.skipped != ir::kNoValue) in.push_back(plan.skipped);
    graph.add1(ops::table().need("ema_update"), in, {{"keep", s.keep}}, s.from);
  }
}

void StepGraphs::add_update(Draft& draft, const StepKey& key) {
  ir::Graph& graph = draft.graph;
  const size_t count = draft.gradients.size();
  for (size_t i = 0; i < count; ++i) {
    passes::ParamGradient& g = draft.gradients[i];
    g.gradient = draft.sums[i].value;
    const bool is_whole = draft.dims[i] >= 0 && options_.strategy.zero < 3 && draft.copies[i] == ir::kNoValue;
    if (is_whole) g.target = passes::own_part(graph, {g.param, draft.dims[i]}, place_.coordinates);
    if (draft.is_gathered_for_update(i)) gather_for_update(draft, i);
  }
  passes::OptimizerPlan plan =
      passes::add_optimizer(graph, draft.gradients, options_.optimizer,
                            {.scaled_loss = options_.scaled_loss,
                             .has_limits = options_.guarded,
                             .loss = mean_loss(graph, draft.sums[count + draft.statistics.size()].value),
                             .embeddings = passes::embedding_names(training_),
                             .coordinates = place_.coordinates});
  write_back(draft, plan, draft.round_updates(plan));
  add_running_statistics(draft, plan, key);
  draft.made.states = plan.states;
  draft.made.optimizer_text = plan.text + describe_parts(draft);
  std::vector<ValueId> outputs;
  std::vector<std::string> names;
  for (size_t i = 0; i < draft.counters; ++i) {
    outputs.push_back(draft.sums[count + draft.statistics.size() + i].value);
    names.push_back(training_.output_names()[i]);
  }
  graph.set_outputs(outputs, names);
  if (plan.grad_norm != ir::kNoValue) graph.add_output(plan.grad_norm, "grad_norm");
  if (plan.skipped != ir::kNoValue) graph.add_output(plan.skipped, "skipped");
}

StepGraph StepGraphs::make(const StepKey& key, std::vector<TrainedParam>& params) {
  Draft draft;
  forward(draft, key);
  differentiate(draft, params);
  split_over_ranks(draft);
  place_inputs(draft.graph);
  choose_parts(draft);
  share_out_params(draft);
  add_sums(draft, key);
  if (key.part == StepPart::last) {
    add_update(draft, key);
  } else {
    draft.graph.set_outputs({}, {});
  }
  return settle(draft, true);
}

StepGraph StepGraphs::settle(Draft& draft, bool has_common_results) const {
  ir::Graph& graph = draft.graph;
  graph.sort();
  if (!place_.is_alone()) {
    passes::fix_collective_order(graph);
    has_common_results ? check_shards(graph) : static_cast<void>(passes::infer_shards(graph));
  }
  for (const ir::Value& v : graph.values()) {
    if (v.kind == ir::ValueKind::state) draft.made.held.push_back(v);
  }
  return std::move(draft.made);
}

}  // namespace trireme::lower
