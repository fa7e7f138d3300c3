// A training session: makes a loss graph trainable, compiles its steps, runs them.
#include "engine/train_session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "base/cpu_info.h"
#include "base/memory.h"
#include "comm/mesh.h"
#include "engine/step_phases.h"
#include "ops/table.h"
#include "runtime/open_device.h"

namespace trireme::engine {

using ir::ValueId;
using tensor::Dims;
using tensor::Tensor;

namespace {

/// Input of the update of several micro-batches: their mean loss.
constexpr const char* kStepLoss = "step_loss";
constexpr const char* kLossOutput = "loss_sum";
/// Scalars that a loss graph may have besides the loss.
constexpr std::array<const char*, 2> kCounters{"count", "correct"};

std::string gradient_name(const std::string& param) { return param + ".grad"; }

/// Position of the output called `name`, or nullopt.
std::optional<size_t> output_index(const ir::Graph& graph, std::string_view name) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<size_t>(at - names.begin());
}

/// Mean and variance operands of batch norms.
std::vector<ValueId> running_statistics(const ir::Graph& graph) {
  std::vector<ValueId> ids;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op_name() == "batch_norm") ids.insert(ids.end(), {node.in[3], node.in[4]});
  }
  return ids;
}

}  // namespace

/// One compiled part of a step with the memory of its results.
struct TrainSession::StepProgram {
  ir::Graph graph;
  std::shared_ptr<const compile::Program> program;
  std::unique_ptr<runtime::Executor> executor;
  std::vector<StepPhase> phases;  ///< per step of the program
  std::vector<Tensor> results;    ///< in the order of graph.output_names()
  void* arena = nullptr;          ///< what the executor was bound to last
  runtime::Trace trace;
  std::vector<const void*> in;
  std::vector<void*> out;

  /// The scalar result `name` as a number; 0 if there is none.
  double number(std::string_view name) const {
    const auto at = output_index(graph, name);
    return at ? results[*at].to_doubles()[0] : 0;
  }
};

TrainSession::TrainSession(const ir::Graph& loss_graph, const TrainOptions& options)
    : options_(options),
      model_(loss_graph),
      pool_(options.threads > 0 ? options.threads : base::read_cpu_info().threads(), options.cpus),
      device_(runtime::open_device(options.device)),
      stream_(device_->open_stream(pool_)) {
  base::require(options.mesh == nullptr || options.mesh->shape().size() == 1,
                "training on several ranks is not part of this build");
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
  take_states(training_);
  passes::to_training(training_);
  training_.sort();
}

TrainSession::~TrainSession() = default;

void TrainSession::take_states(ir::Graph& graph) {
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
  for (size_t i = 0; ema && i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ValueId(static_cast<uint32_t>(i)));
    const std::string averaged = v.name + ".ema";
    if (v.kind == ir::ValueKind::param && states_.has(averaged)) v.data = states_.at(averaged);
  }
  return graph;
}

void TrainSession::add_update(ir::Graph& graph, const std::vector<passes::ParamGradient>& gradients,
                              ValueId loss) {
  const passes::OptimizerPlan plan =
      passes::add_optimizer(graph, gradients, options_.optimizer,
                            {.scaled_loss = options_.scaled_loss,
                             .norm_limit = options_.guarded,
                             .loss = loss,
                             .embeddings = passes::embedding_names(training_)});
  for (const passes::OptimizerState& s : plan.states) {
    if (s.copy_of.empty()) {
      states_.need_zeros(s.name, s.type);
    } else if (!states_.has(s.name)) {
      states_.add(s.name, states_.at(s.copy_of));
    }
  }
  optimizer_text_ = plan.text;
  if (plan.grad_norm != ir::kNoValue) graph.add_output(plan.grad_norm, "grad_norm");
  if (plan.skipped != ir::kNoValue) graph.add_output(plan.skipped, "skipped");
}

ValueId TrainSession::mean_loss(ir::Graph& graph, ValueId loss_sum) const {
  if (!options_.guarded) return ir::kNoValue;
  const tensor::TensorType scalar{tensor::DType::f32, tensor::Shape{}};
  const ir::OpDef& mul = ops::table().need("mul");
  const ValueId weighted =
      graph.add1(mul, {loss_sum, passes::need_input(graph, passes::kLossWeightInput, scalar)});
  if (!options_.scaled_loss) return weighted;
  return graph.add1(mul, {weighted, passes::need_input(graph, passes::kGradScaleInput, scalar)});
}

ir::Graph TrainSession::whole_graph(const std::vector<Dims>& shapes, Part part) {
  std::vector<Dims> all = shapes;
  for (size_t i = shapes.size(); i < training_.inputs().size(); ++i) {
    all.push_back(training_.type(training_.inputs()[i]).shape.to_dims());
  }
  ir::Graph graph = passes::bind_shapes(training_, all);
  passes::run_passes(passes::forward_passes(), graph, options_.passes);
  if (options_.precision.compute != passes::Precision::f32) {
    precision_text_ = passes::lower_precision(graph, options_.precision).text();
    graph.sort();
  }
  std::vector<ValueId> wanted;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const auto id = ValueId(static_cast<uint32_t>(i));
    const ir::Value& v = graph.value(id);
    const bool is_trained =
        std::any_of(params_.begin(), params_.end(), [&](const TrainedParam& p) { return p.name == v.name; });
    if (v.kind == ir::ValueKind::state && is_trained) wanted.push_back(id);
  }
  const ValueId loss = graph.outputs()[*output_index(graph, kLossOutput)];
  const auto gradients = passes::differentiate(graph, loss, wanted);
  for (TrainedParam& p : params_) {
    p.is_reached = std::any_of(gradients.begin(), gradients.end(), [&](const passes::ParamGradient& g) {
      return graph.value(g.param).name == p.name;
    });
  }
  if (part == Part::whole) {
    add_update(graph, gradients, mean_loss(graph, loss));
  } else {
    for (const passes::ParamGradient& g : gradients) {
      const std::string name = gradient_name(graph.value(g.param).name);
      const ValueId sum = graph.add_state(name, graph.type(g.param));
      states_.need_zeros(name, graph.type(g.param));
      graph.add1(ops::table().need("accumulate"), {sum, g.gradient});
    }
  }
  graph.sort();
  return graph;
}

ir::Graph TrainSession::update_graph() {
  ir::Graph graph;
  graph.name = "update";
  std::vector<passes::ParamGradient> gradients;
  for (const TrainedParam& p : params_) {
    if (!p.is_reached) continue;
    const tensor::TensorType type = states_.at(p.name).type();
    const ValueId param = graph.add_state(p.name, type);
    gradients.push_back({param, graph.add_state(gradient_name(p.name), type)});
  }
  const ValueId loss =
      options_.guarded ? graph.add_input(kStepLoss, {tensor::DType::f32, tensor::Shape{}}) : ir::kNoValue;
  add_update(graph, gradients, loss);
  graph.sort();
  return graph;
}

std::shared_ptr<const compile::Program> TrainSession::compile_step(ir::Graph& graph) {
  const compile::CompileOptions options{
      .on = device_->kind(),
      .threads = pool_.size(),
      .memory_bytes = options_.memory_bytes > 0 ? options_.memory_bytes : base::memory_limit_bytes()};
  if (options_.activation_bytes > 0) return fit_activations(graph, options);
  passes::recompute(graph, passes::plan_recompute(graph, options_.recompute));
  graph.sort();
  return std::make_shared<compile::Program>(compile::compile(graph, options, packs_));
}

std::shared_ptr<const compile::Program> TrainSession::fit_activations(
    ir::Graph& graph, const compile::CompileOptions& options) {
  // From the least work done twice to the most: nothing, the cheap ops, then ever more pieces.
  std::vector<passes::RecomputePlan> plans{plan_recompute(graph, passes::RecomputeMode::none),
                                           plan_recompute(graph, passes::RecomputeMode::selective)};
  const size_t cuts = passes::count_cuts(graph);
  for (size_t segments = 2; segments <= cuts + 1; segments = segments * 3 / 2 + 1) {
    plans.push_back(plan_recompute(graph, passes::RecomputeMode::full, segments));
  }
  plans.push_back(plan_recompute(graph, passes::RecomputeMode::full));
  std::stable_sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.flop < b.flop; });
  int64_t least = INT64_MAX;
  for (const passes::RecomputePlan& plan : plans) {
    ir::Graph tried = graph;
    passes::recompute(tried, plan);
    tried.sort();
    auto program = std::make_shared<compile::Program>(compile::compile(tried, options, packs_));
    least = std::min(least, program->memory.arena_bytes);
    if (program->memory.arena_bytes > options_.activation_bytes) continue;
    graph = std::move(tried);
    return program;
  }
  base::fail(base::ErrorCode::exhausted, "activations need ", least,
             " bytes with everything recomputed, the budget is ", options_.activation_bytes,
             "; a smaller micro-batch needs less");
}

std::unique_ptr<TrainSession::StepProgram> TrainSession::build(const std::vector<Dims>& shapes, Part part) {
  auto made = std::make_unique<StepProgram>();
  made->graph = part == Part::update ? update_graph() : whole_graph(shapes, part);
  // Before the passes, so that what is widened still fuses; after them for what they made.
  const bool is_mixed = options_.precision.compute != passes::Precision::f32;
  if (is_mixed) passes::widen_unsupported(made->graph, device_->kind());
  passes::run_passes(passes::step_passes(), made->graph, options_.passes);
  if (is_mixed) {
    passes::widen_unsupported(made->graph, device_->kind());
    passes::localise_casts(made->graph);
  }
  made->program = compile_step(made->graph);
  std::vector<void*> addresses;
  for (compile::SlotId id : made->program->states) {
    addresses.push_back(states_.at(made->program->slot(id).name).mutable_raw());
  }
  made->executor = std::make_unique<runtime::Executor>(made->program, std::move(addresses));
  made->phases = phases_of(*made->program);
  for (compile::SlotId id : made->program->outputs) {
    made->results.push_back(Tensor::zeros(made->program->slot(id).dtype, made->program->slot(id).dims));
  }
  return made;
}

TrainSession::StepProgram& TrainSession::program_for(const std::vector<Dims>& shapes, Part part) {
  std::unique_ptr<StepProgram>& found =
      programs_[{part == Part::update ? std::vector<Dims>{} : shapes, part}];
  if (found == nullptr) found = build(shapes, part);
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
  if (micro_batches == 1) return {program_for(shapes, Part::whole).program.get()};
  const compile::Program* gradients = program_for(shapes, Part::gradients).program.get();
  return {gradients, program_for({}, Part::update).program.get()};
}

const runtime::Trace& TrainSession::trace(const std::vector<Dims>& shapes, size_t micro_batches) {
  return program_for(shapes, micro_batches == 1 ? Part::whole : Part::gradients).trace;
}

const ir::Graph& TrainSession::step_graph(const std::vector<Dims>& shapes, size_t micro_batches) {
  return program_for(shapes, micro_batches == 1 ? Part::whole : Part::gradients).graph;
}

void TrainSession::zero_gradients() {
  for (const TrainedParam& p : params_) {
    if (!p.is_reached) continue;
    Tensor& sum = states_.at(gradient_name(p.name));
    constexpr int64_t kGrain = 1 << 16;
    pool_.for_range(sum.bytes(), kGrain, [&](int64_t begin, int64_t end) {
      std::memset(sum.mutable_raw() + begin, 0, static_cast<size_t>(end - begin));
    });
  }
}

void TrainSession::launch(StepProgram& p, const Feeds& feeds, const StepInputs& inputs, int64_t first_row) {
  if (p.program->memory.arena_bytes > arena_bytes_) {
    arena_.reset();
    arena_ = device_->allocate(p.program->memory.arena_bytes);
    arena_bytes_ = p.program->memory.arena_bytes;
  }
  if (p.arena != arena_.get() || p.arena == nullptr) {
    p.executor->bind_arena(arena_.get());
    p.arena = arena_.get();
  }
  const std::array<int64_t, 3> rng{inputs.seed, inputs.draw, first_row};
  const std::unordered_map<std::string_view, const void*> scalars{
      {passes::kRngInput, rng.data()},
      {passes::kLossWeightInput, &inputs.loss_weight},
      {passes::kLrInput, &inputs.lr},
      {passes::kStepInput, &inputs.step},
      {passes::kGradScaleInput, &inputs.grad_scale},
      {passes::kNormLimitInput, &inputs.norm_limit},
      {passes::kLossLimitInput, &inputs.loss_limit},
      {kStepLoss, &step_loss_}};
  p.in.clear();
  p.out.clear();
  for (size_t i = 0; i < p.program->inputs.size(); ++i) {
    const auto scalar = scalars.find(p.program->input_names[i]);
    p.in.push_back(scalar != scalars.end() ? scalar->second : feeds.at(i).raw());
  }
  for (Tensor& t : p.results) p.out.push_back(t.mutable_raw());
  p.executor->run(p.in, p.out, *stream_, &p.trace);
}

void TrainSession::read_results(const StepProgram& p, StepResult& result) const {
  result.loss_sum += p.number(kLossOutput);
  result.count += p.number("count");
  result.correct += p.number("correct");
  if (output_index(p.graph, "grad_norm")) result.grad_norm = p.number("grad_norm");
  if (output_index(p.graph, "skipped")) result.skipped = p.number("skipped") != 0;
  for (size_t s = 0; s < p.phases.size(); ++s) {
    int64_t& ns = p.phases[s] == StepPhase::forward    ? result.forward_ns
                  : p.phases[s] == StepPhase::backward ? result.backward_ns
                                                       : result.update_ns;
    ns += p.trace.step_ns[s];
  }
}

StepResult TrainSession::step(std::span<const Feeds> micro_batches, const StepInputs& inputs) {
  base::require(!micro_batches.empty(), "a step needs at least one micro-batch");
  const bool is_whole = micro_batches.size() == 1;
  std::vector<StepProgram*> parts;
  for (const Feeds& feeds : micro_batches) {
    parts.push_back(&program_for(shapes_of(feeds), is_whole ? Part::whole : Part::gradients));
  }
  StepResult result;
  if (!is_whole) zero_gradients();
  int64_t first_row = inputs.first_row;
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    launch(*parts[m], micro_batches[m], inputs, first_row);
    read_results(*parts[m], result);
    first_row += micro_batches[m][0].rank() == 0 ? 1 : micro_batches[m][0].dims()[0];
  }
  if (!is_whole) {
    step_loss_ = static_cast<float>(result.loss_sum * inputs.loss_weight * inputs.grad_scale);
    StepProgram& update = program_for({}, Part::update);
    launch(update, {}, inputs, 0);
    read_results(update, result);
  }
  return result;
}

}  // namespace trireme::engine
