// A training session: makes a loss graph trainable, compiles its steps, runs them.
#include "engine/train_session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "base/machine/cpu_info.h"
#include "base/machine/memory.h"
#include "comm/mesh.h"
#include "engine/session.h"
#include "engine/state_parts.h"
#include "engine/step_program.h"
#include "engine/step_phases.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/precision/float8.h"
#include "passes/precision/wide_gradients.h"
#include "runtime/device_speed.h"
#include "runtime/open_device.h"

namespace trireme::engine {

using ir::ValueId;
using tensor::Dims;
using tensor::Tensor;

namespace {

constexpr const char* kLossOutput = "loss_sum";
/// Scalars that a loss graph may have besides the loss.
constexpr std::array<const char*, 2> kCounters{"count", "correct"};

/// Mean and variance operands of batch norms.
std::vector<ValueId> running_statistics(const ir::Graph& graph) {
  std::vector<ValueId> ids;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op_name() == "batch_norm") ids.insert(ids.end(), {node.in[3], node.in[4]});
  }
  return ids;
}

/// The groups of several axes over which values are gathered; those of one axis are open.
void open_groups(const TrainOptions& options) {
  if (options.mesh == nullptr) return;
  base::require(options.mesh->shape() == options.strategy.mesh(), "the mesh is not that of the strategy");
  for (const char* axes : {"dp,tpr", "dp,tp", "tpr,tp", "dp,tpr,tp"}) options.mesh->open(axes);
}

}  // namespace

TrainSession::TrainSession(const ir::Graph& loss_graph, const TrainOptions& options)
    : options_(options),
      model_(loss_graph),
      pool_(options.threads > 0 ? options.threads : base::read_cpu_info().threads(), options.cpus),
      device_name_(options.mesh == nullptr ? options.device
                                           : runtime::device_of_rank(options.device, options.mesh->world())),
      device_(runtime::open_device(device_name_)),
      stream_(device_->open_stream(pool_)),
      on_(runtime::bind_device(*device_, pool_, packs_, options.graphs, options.mesh)) {
  if (on_.device != nullptr) {
    states_.live_on(*device_, *stream_, *on_.staging);
    scratch_.live_on(*device_, *stream_, *on_.staging);
  }
  open_groups(options_);
  model_.sort();
  const auto loss = output_index(model_, kLossOutput);
  base::require(loss.has_value(), "the graph has no output '", kLossOutput, "' to train on");
  training_ = model_;
  std::vector<ValueId> outputs{training_.outputs()[*loss]};
  std::vector<std::string> names{kLossOutput};
  for (const char* counter : kCounters) {
    const auto at = output_index(training_, counter);
    if (at) outputs.push_back(training_.outputs()[*at]), names.emplace_back(counter);
  }
  training_.set_outputs(outputs, names);
  training_.sort();
  take_states();
  passes::to_training(training_);
  training_.sort();
  graphs_ = std::make_unique<StepGraphs>(training_, options_);
}

TrainSession::~TrainSession() = default;

void TrainSession::take_states() {
  ir::Graph& graph = training_;
  const std::vector<ValueId> statistics = running_statistics(graph);
  const auto is_frozen = [&](const std::string& name) {
    return std::any_of(options_.freeze.begin(), options_.freeze.end(),
                       [&](const std::string& part) { return name.find(part) != std::string::npos; });
  };
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const auto id = ValueId(static_cast<uint32_t>(i));
    const ir::Value& v = graph.value(id);
    if (v.kind != ir::ValueKind::param) continue;
    const bool is_statistic = std::find(statistics.begin(), statistics.end(), id) != statistics.end();
    // A single number is a constant of the architecture (a scale, an epsilon), not a weight.
    const bool is_weight =
        v.data.dtype() == tensor::DType::f32 && v.data.elements() > 1 && !is_frozen(v.name);
    if (!is_statistic && !is_weight) continue;
    base::require(!v.name.empty(), "a parameter of type ", v.type.to_string(), " has no name");
    states_.add(v.name, v.data);
    if (!is_statistic) params_.push_back({v.name, v.data.dims()});
    graph.make_state(id);
  }
  // The model shows the present content from now on, and its first content can go.
  for (size_t i = 0; i < model_.values().size(); ++i) {
    ir::Value& v = model_.value(ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param && states_.has(v.name)) v.data = states_.at(v.name);
  }
}

ir::Graph TrainSession::trained_graph(bool ema) const {
  ir::Graph graph = model_;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || !states_.has(v.name)) continue;
    const std::string averaged = v.name + ".ema";
    const std::string& name = ema && states_.has(averaged) ? averaged : v.name;
    const Tensor& held = states_.at(name);
    v.data = options_.mesh == nullptr ? held : whole_of(held, states_.place(name), *options_.mesh);
  }
  if (stages() > 1) share_weights(graph);
  return graph;
}

void TrainSession::lend_weights(const PreparedModel& model) {
  if (on_.device == nullptr) return;
  states_.upload();
  const StateStore& states = states_;
  const std::string format = base::concat("on device ", device_->ordinal());
  for (const ir::Value& v : model.graph().values()) {
    if (v.kind != ir::ValueKind::param || !v.data.defined()) continue;
    for (const std::string& name : {v.name, v.name + ".ema"}) {
      // Others were gathered from several ranks, or changed by a pass.
      if (!states.has(name) || v.data.raw() != states.at(name).raw()) continue;
      model.packs().get<void>(ir::pack_key(v.data, format), [&] { return states.memory(name); });
    }
  }
}

void TrainSession::states_changed() {
  for (const auto& [copy, master] : copies_) {
    const Tensor whole = whole_of(states_.at(master), states_.place(master), *options_.mesh);
    const Tensor part = part_of(whole, scratch_.place(copy), graphs_->mesh(), graphs_->coordinates());
    scratch_.set(copy, converted(part, scratch_.at(copy).dtype()));
  }
}

/// A weight or a running statistic stands as the step wants it: whole, or this rank's part of it.
void TrainSession::settle_weight(const std::string& name, const ir::Value& wanted) {
  const StatePlace place{states_.place(name).dims, wanted.shard};
  if (states_.type(name) == wanted.type) return states_.set_place(name, place);
  states_.replace(name, part_of(states_.at(name), place, graphs_->mesh(), graphs_->coordinates()), place);
  for (size_t i = 0; i < model_.values().size(); ++i) {
    ir::Value& v = model_.value(ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param && v.name == name) v.data = Tensor();
  }
}

/// Every state of the step has a place with the content it begins with.
void TrainSession::settle_states(const StepGraph& step) {
  for (const auto& [copy, master] : step.copies) {
    copies_.emplace(copy, master);
    if (scratch_.has(copy)) continue;
    const auto named = [&](const ir::Value& v) { return v.name == copy; };
    const auto values = step.graph.values();
    const ir::Value& v = *std::find_if(values.begin(), values.end(), named);
    const StatePlace place{states_.place(master).dims, v.shard};
    const Tensor part = part_of(states_.at(master), place, graphs_->mesh(), graphs_->coordinates());
    scratch_.add(copy, converted(part, v.type.dtype));
    scratch_.set_place(copy, place);
  }
  for (const ir::Value& v : step.graph.values()) {
    if (v.kind == ir::ValueKind::state && states_.has(v.name)) settle_weight(v.name, v);
  }
  for (const passes::OptimizerState& s : step.states) {
    if (states_.has(s.name)) continue;
    if (s.copy_of.empty()) {
      states_.need_zeros(s.name, s.type);
      // A split state has its parameter's extents.
      const Dims dims = s.shard.is_replicated() ? s.type.shape.to_dims() : states_.place(s.of).dims;
      states_.set_place(s.name, {dims, s.shard});
      continue;
    }
    const StatePlace of = states_.place(s.copy_of), place{of.dims, s.shard};
    const Tensor& held = states_.at(s.copy_of);
    if (held.type() == s.type) {
      states_.add(s.name, held);
    } else {
      const Tensor whole = whole_of(held, of, *options_.mesh);
      states_.add(s.name, part_of(whole, place, graphs_->mesh(), graphs_->coordinates()));
    }
    states_.set_place(s.name, place);
  }
  for (const ir::Value& v : step.graph.values()) {
    if (v.kind == ir::ValueKind::state && !states_.has(v.name)) scratch_.need_zeros(v.name, v.type);
  }
}

std::shared_ptr<const compile::Program> TrainSession::compile_step(ir::Graph& graph, bool is_stage) {
  const compile::CompileOptions options{.on = device_->kind(),
                                        .device = device_.get(),
                                        .host_fallback = options_.host_fallback,
                                        .threads = pool_.size(),
                                        .overlap = options_.strategy.overlap,
                                        .memory_bytes = options_.memory_bytes > 0 ? options_.memory_bytes
                                                        : device_->memory_bytes() > 0
                                                            ? device_->memory_bytes()
                                                            : base::memory_limit_bytes()};
  // What a stage computes again was decided before its programs were split.
  if (is_stage) {
    finish_passes(graph);
    passes::fix_collective_order(graph);
    return std::make_shared<compile::Program>(compile::compile(graph, options, packs_));
  }
  if (options_.activation_bytes > 0) return fit_activations(graph, options);
  std::vector<passes::RecomputePlan> plans{passes::plan_recompute(graph, options_.recompute)};
  share_plans(plans, graph.nodes().size());
  return compile_plan(graph, plans[0], options);
}

std::shared_ptr<const compile::Program> TrainSession::compile_plan(ir::Graph& graph,
                                                                   const passes::RecomputePlan& plan,
                                                                   const compile::CompileOptions& options) {
  passes::recompute(graph, plan);
  graph.sort();
  finish_passes(graph);
  if (options_.strategy.zero == 3) passes::gather_again(graph);
  if (options_.mesh != nullptr) passes::fix_collective_order(graph);
  return std::make_shared<compile::Program>(compile::compile(graph, options, packs_));
}

std::vector<passes::RecomputePlan> TrainSession::recompute_plans(const ir::Graph& graph) const {
  std::vector<passes::RecomputePlan> plans{plan_recompute(graph, passes::RecomputeMode::none),
                                           plan_recompute(graph, passes::RecomputeMode::selective)};
  const size_t cuts = passes::count_cuts(graph);
  for (size_t segments = 2; segments <= cuts + 1; segments = segments * 3 / 2 + 1) {
    plans.push_back(plan_recompute(graph, passes::RecomputeMode::full, segments));
  }
  plans.push_back(plan_recompute(graph, passes::RecomputeMode::full));
  std::stable_sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.flop < b.flop; });
  share_plans(plans, graph.nodes().size());
  return plans;
}

/// Plans go by bytes, which differ where parts are of uneven length; collectives that are done again must
/// not. So all ranks whose programs meet take the plans of the first one.
void TrainSession::share_plans(std::vector<passes::RecomputePlan>& plans, size_t nodes) const {
  if (options_.mesh == nullptr || plans.empty()) return;
  comm::Communicator& group = options_.mesh->axis("dp,tpr,tp");
  std::array<int64_t, 1> count{static_cast<int64_t>(plans.size())};
  group.broadcast(comm::as_bytes(std::span<int64_t>(count)), 0, "number of plans");
  plans.resize(static_cast<size_t>(count[0]));
  for (passes::RecomputePlan& plan : plans) {
    std::array<int64_t, 1> mode{static_cast<int64_t>(plan.mode)};
    group.broadcast(comm::as_bytes(std::span<int64_t>(mode)), 0, "mode of a plan");
    plan.mode = static_cast<passes::RecomputeMode>(mode[0]);
    plan.again.resize(nodes);
    group.broadcast(comm::as_bytes(std::span<char>(plan.again)), 0, "nodes of a plan");
  }
}

std::shared_ptr<const compile::Program> TrainSession::fit_activations(
    ir::Graph& graph, const compile::CompileOptions& options) {
  int64_t least = INT64_MAX;
  for (const passes::RecomputePlan& plan : recompute_plans(graph)) {
    ir::Graph tried = graph;
    const auto program = compile_plan(tried, plan, options);
    const int64_t bytes = most_of_stage(program->memory.arena_bytes);
    least = std::min(least, bytes);
    if (bytes > options_.activation_bytes) continue;
    graph = std::move(tried);
    return program;
  }
  fail_budget(least);
}

/// Ranks whose programs meet choose one plan, though parts of uneven length need different memory.
int64_t TrainSession::most_of_stage(int64_t bytes) const {
  if (options_.mesh == nullptr) return bytes;
  std::array<int64_t, 1> most{bytes};
  options_.mesh->axis("dp,tpr,tp")
      .all_reduce(comm::as_bytes(std::span<int64_t>(most)), {tensor::DType::i64, comm::ReduceOp::max},
                  "memory of a plan");
  return most[0];
}

void TrainSession::fail_budget(int64_t least) const {
  base::fail(base::ErrorCode::exhausted, "activations need ", least,
             " bytes with everything recomputed, the budget is ", options_.activation_bytes,
             "; a smaller micro-batch needs less");
}

void* TrainSession::address_of(const std::string& state) {
  return states_.has(state) ? states_.address(state) : scratch_.address(state);
}

void TrainSession::mark_written(const compile::Program& program) {
  for (const compile::Step& step : program.steps) {
    for (const compile::SlotId id : step.out) {
      if (id == compile::kNoSlot || program.root(id).kind != compile::SlotKind::state) continue;
      const std::string& name = program.root(id).name;
      states_.has(name) ? states_.was_written(name) : scratch_.was_written(name);
    }
  }
}

std::unique_ptr<TrainSession::StepProgram> TrainSession::build(const StepKey& key) {
  auto made = std::make_unique<StepProgram>();
  made->key = key;
  StepGraph step = key.part == StepPart::update ? graphs_->make_update(key)
                   : key.part == StepPart::tied ? graphs_->make_tied(key)
                                                : graphs_->make(key, params_);
  settle_states(step);
  if (!step.optimizer_text.empty()) optimizer_text_ = step.optimizer_text;
  if (!step.precision_text.empty()) precision_text_ = step.precision_text;
  made->graph = std::move(step.graph);
  fuse(made->graph);
  finish(*made);
  for (compile::SlotId id : made->program->outputs) {
    made->results.push_back(Tensor::zeros(made->program->slot(id).dtype, made->program->slot(id).dims));
  }
  return made;
}

void TrainSession::fuse(ir::Graph& graph) const {
  // Before the passes, so that what is widened still fuses; after them for what they made.
  const bool is_mixed = options_.precision.compute != passes::Precision::f32;
  if (is_mixed) passes::widen_weight_gradients(graph);
  if (options_.precision.compute == passes::Precision::fp8) passes::lower_float8(graph, device_->kind());
  if (is_mixed) passes::widen_unsupported(graph, device_->kind());
  passes::run_passes(passes::step_passes(device_->kind()), graph, options_.passes);
  if (!is_mixed) return;
  passes::widen_unsupported(graph, device_->kind());
  passes::localise_casts(graph);
  passes::run_passes(passes::cast_passes(device_->kind()), graph, options_.passes);
}

void TrainSession::finish_passes(ir::Graph& graph) const {
  passes::run_passes(passes::program_passes(device_->kind()), graph, options_.passes);
}

void TrainSession::finish(StepProgram& p, const std::function<bool(const std::string&)>& is_crossing) {
  p.program = compile_step(p.graph, p.key.part == StepPart::stage);
  std::vector<void*> addresses;
  for (compile::SlotId id : p.program->states) {
    addresses.push_back(address_of(p.program->slot(id).name));
  }
  runtime::DeviceBinding on = on_;
  if (is_crossing && on.device != nullptr) {
    for (const std::string& name : p.program->input_names) on.inputs_there.push_back(is_crossing(name));
    for (const std::string& name : p.program->output_names) on.outputs_there.push_back(is_crossing(name));
  }
  p.executor = std::make_unique<runtime::Executor>(p.program, std::move(addresses), options_.mesh, on);
  p.phases = phases_of(*p.program);
}

TrainSession::StepProgram& TrainSession::program_for(const StepKey& key) {
  std::unique_ptr<StepProgram>& found = programs_[key];
  if (found == nullptr) found = build(key);
  return *found;
}

std::vector<Dims> TrainSession::shapes_of(const Feeds& feeds) const {
  const size_t wanted = model_.inputs().size();
  base::require(feeds.size() == wanted, "the loss takes ", wanted, " inputs, got ", feeds.size());
  std::vector<Dims> shapes;
  for (size_t i = 0; i < feeds.size(); ++i) {
    const ir::Value& v = model_.value(model_.inputs()[i]);
    base::require(feeds[i].defined() && feeds[i].dtype() == v.type.dtype, "input '", v.name, "' is ",
                  v.type.to_string(), ", got ",
                  feeds[i].defined() ? feeds[i].type().to_string() : std::string("nothing"));
    shapes.push_back(feeds[i].dims());
  }
  return shapes;
}

size_t TrainSession::own_micro_batch(size_t i, size_t per_rank) const {
  if (options_.mesh == nullptr) return i;
  const tensor::MeshShape& shape = options_.mesh->shape();
  const auto ranks = static_cast<size_t>(shape.extent("dp"));
  if (ranks == 1) return i;
  const auto rank = static_cast<size_t>(options_.mesh->coordinates()[shape.index_of("dp")]);
  return options_.strategy.zero >= 2 ? i * ranks + rank : rank * per_rank + i;
}

void TrainSession::prepare(const std::vector<Dims>& shapes, size_t micro_batches) {
  programs(shapes, micro_batches);
}

std::vector<const compile::Program*> TrainSession::programs(const std::vector<Dims>& shapes,
                                                            size_t micro_batches) {
  if (stages() > 1) return pipeline_programs(shapes, micro_batches);
  std::vector<const compile::Program*> list;
  if (micro_batches > 1) list.push_back(program_for({shapes, micro_batches, StepPart::more}).program.get());
  list.push_back(program_for({shapes, micro_batches, StepPart::last}).program.get());
  return list;
}

std::optional<double> TrainSession::device_product_rate() {
  if (on_.device == nullptr || device_->ordinal() < 0) return std::nullopt;
  const runtime::Ceilings most = runtime::measure_ceilings(*device_, pool_, {.scale = 0.5, .seconds = 0.05});
  const bool is_low = options_.precision.compute != passes::Precision::f32;
  const tensor::DType type = options_.precision.compute == passes::Precision::f16 ? tensor::DType::f16
                             : is_low                                             ? tensor::DType::bf16
                                                                                  : tensor::DType::f32;
  return most.tflop_s(type) * 1e12;
}

std::string TrainSession::host_operators(const std::vector<Dims>& shapes, size_t micro_batches) {
  std::string all;
  if (on_.device == nullptr) return all;
  for (const compile::Program* program : programs(shapes, micro_batches)) {
    const std::string names = program->host_operators();
    if (!names.empty() && all.find(names) == std::string::npos) all += (all.empty() ? "" : "; ") + names;
  }
  return all;
}

const runtime::Trace& TrainSession::trace(const std::vector<Dims>& shapes, size_t micro_batches) {
  if (stages() > 1) return pipeline_trace(shapes, micro_batches);
  return program_for({shapes, micro_batches, micro_batches > 1 ? StepPart::more : StepPart::last}).trace;
}

const ir::Graph& TrainSession::step_graph(const std::vector<Dims>& shapes, size_t micro_batches) {
  if (stages() > 1) prepare(shapes, micro_batches);
  return program_for({shapes, micro_batches, stages() > 1 ? StepPart::update : StepPart::last}).graph;
}

void TrainSession::use_arena(StepProgram& p) {
  if (p.executor->arena_bytes() > arena_bytes_) {
    arena_.reset();
    arena_ = device_->allocate(p.executor->arena_bytes());
    arena_bytes_ = p.executor->arena_bytes();
  }
  if (p.arena == arena_.get() && p.arena != nullptr) return;
  p.executor->bind_arena(arena_.get());
  p.arena = arena_.get();
}

StepScalars TrainSession::scalars_of(const StepInputs& inputs, const Feeds& feeds, size_t micro_batch,
                                     size_t per_rank) const {
  const int64_t rows = feeds.empty() || feeds[0].rank() == 0 ? 1 : feeds[0].dims()[0];
  const auto place = static_cast<int64_t>(own_micro_batch(micro_batch, per_rank));
  return {
      inputs, {inputs.seed, inputs.draw, inputs.first_row + place * rows}, static_cast<int64_t>(micro_batch)};
}

void TrainSession::launch(StepProgram& p, const Feeds& feeds, const StepInputs& inputs, size_t micro_batch) {
  use_arena(p);
  const StepScalars scalars = scalars_of(inputs, feeds, micro_batch, p.key.micro_batches);
  p.in.clear();
  p.out.clear();
  for (size_t i = 0; i < p.program->inputs.size(); ++i) {
    const void* scalar = scalars.find(p.program->input_names[i]);
    p.in.push_back(scalar != nullptr ? scalar : feeds.at(i).raw());
  }
  for (Tensor& t : p.results) p.out.push_back(t.mutable_raw());
  run_bound(p);
}

void TrainSession::run_bound(StepProgram& p) {
  if (on_.device == nullptr) return p.executor->run(p.in, p.out, *stream_, &p.trace);
  launch_on_device(p);
}

/// Steps are timed one by one in the first run; later ones are replayed as a whole, whose time is shared out
/// among them as it was then.
void TrainSession::launch_on_device(StepProgram& p) {
  states_.upload();
  scratch_.upload();
  const bool is_first = p.trace.step_ns.empty();
  const auto start = std::chrono::steady_clock::now();
  p.executor->run(p.in, p.out, *stream_, is_first ? &p.trace : nullptr);
  p.run_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  mark_written(*p.program);
}

void TrainSession::read_results(const StepProgram& p, StepResult& result) const {
  result.loss_sum = p.number(kLossOutput);
  result.count = p.number("count");
  result.correct = p.number("correct");
  result.grad_norm = p.number("grad_norm");
  result.skipped = p.number("skipped") != 0;
  const int64_t traced = std::accumulate(p.trace.step_ns.begin(), p.trace.step_ns.end(), int64_t{0});
  const double scale =
      p.run_ns == 0 || traced == 0 ? 1 : static_cast<double>(p.run_ns) / static_cast<double>(traced);
  for (size_t s = 0; s < p.phases.size(); ++s) {
    int64_t& ns = p.phases[s] == StepPhase::forward    ? result.forward_ns
                  : p.phases[s] == StepPhase::backward ? result.backward_ns
                                                       : result.update_ns;
    ns += static_cast<int64_t>(static_cast<double>(p.trace.step_ns[s]) * scale);
  }
}

StepResult TrainSession::step(std::span<const Feeds> micro_batches, const StepInputs& inputs) {
  base::require(!micro_batches.empty(), "a step needs at least one micro-batch");
  const size_t count = micro_batches.size();
  if (stages() > 1) return pipeline_step(micro_batches, inputs);
  std::vector<StepProgram*> parts;
  for (size_t m = 0; m < count; ++m) {
    const StepPart part = m + 1 < count ? StepPart::more : StepPart::last;
    parts.push_back(&program_for({shapes_of(micro_batches[m]), count, part}));
  }
  StepResult result;
  for (size_t m = 0; m < count; ++m) {
    launch(*parts[m], micro_batches[m], inputs, m);
    read_results(*parts[m], result);
    result.communication_ns += parts[m]->executor->communication().total_ns;
    result.exposed_ns += parts[m]->executor->communication().exposed_ns;
  }
  return result;
}

}  // namespace trireme::engine
