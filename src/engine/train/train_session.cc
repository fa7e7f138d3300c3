// A training session: lowers the steps of a loss graph, keeps its states, and runs the steps.
#include "engine/train/train_session.h"

#include <algorithm>
#include <array>

#include "base/machine/memory.h"
#include "comm/mesh.h"
#include "engine/prepared_model.h"
#include "runtime/device_speed.h"

namespace trireme::engine {

using lower::StepKey;
using lower::StepPart;
using tensor::Dims;
using tensor::Tensor;

namespace {

/// Opens groups over several axes in which values are gathered; groups over one axis are open already.
void open_groups(const TrainOptions& options) {
  if (options.mesh == nullptr) return;
  base::require(options.mesh->shape() == options.strategy.mesh(), "the mesh is not that of the strategy");
  for (const char* axes : {"dp,tpr", "dp,tp", "tpr,tp", "dp,tpr,tp"}) options.mesh->open(axes);
}

lower::RankPlace place_of(const TrainOptions& options) {
  if (options.mesh == nullptr) return {};
  return {options.mesh->shape(), options.mesh->coordinates()};
}

compile::CompileOptions compile_options(const TrainOptions& options, StepRunner& runner) {
  tensor::Device& device = runner.device();
  return {.on = device.kind(),
          .device = &device,
          .host_fallback = options.host_fallback,
          .threads = runner.pool().size(),
          .memory_bytes = options.memory_bytes > 0    ? options.memory_bytes
                          : device.memory_bytes() > 0 ? device.memory_bytes()
                                                      : base::memory_limit_bytes()};
}

}  // namespace

/// Lets the ranks whose programs have common collectives agree on what is recomputed.
class TrainSession::Ranks : public lower::Agreement {
 public:
  explicit Ranks(const comm::Mesh& mesh) : group_(mesh.axis("dp,tpr,tp")) {}

  void share(std::vector<passes::RecomputePlan>& plans) override {
    plans.resize(static_cast<size_t>(first_of(static_cast<int64_t>(plans.size()), "number of plans")));
    for (passes::RecomputePlan& plan : plans) {
      plan.mode =
          static_cast<passes::RecomputeMode>(first_of(static_cast<int64_t>(plan.mode), "mode of a plan"));
      std::string nodes;
      for (const std::string& name : plan.again) nodes += name + '\0';
      nodes.resize(static_cast<size_t>(first_of(static_cast<int64_t>(nodes.size()), "size of a plan")));
      group_.broadcast(comm::as_bytes(std::span<char>(nodes)), 0, "nodes of a plan");
      plan.again.clear();
      for (size_t begin = 0, end; begin < nodes.size(); begin = end + 1) {
        end = nodes.find('\0', begin);
        plan.again.push_back(nodes.substr(begin, end - begin));
      }
    }
  }

  int64_t largest(int64_t bytes) override {
    std::array<int64_t, 1> most{bytes};
    group_.all_reduce(comm::as_bytes(std::span<int64_t>(most)), {tensor::DType::i64, comm::ReduceOp::max},
                      "memory of a plan");
    return most[0];
  }

 private:
  /// The first rank's number.
  int64_t first_of(int64_t own, const char* what) {
    std::array<int64_t, 1> number{own};
    group_.broadcast(comm::as_bytes(std::span<int64_t>(number)), 0, what);
    return number[0];
  }

  comm::Communicator& group_;
};

TrainSession::TrainSession(const ir::Graph& loss_graph, const TrainOptions& options)
    : options_(options),
      runner_(options_),
      steps_(std::max<size_t>(2, options.max_programs)),  // keeps all that programs() lists
      pipelines_(options.max_programs) {
  open_groups(options_);
  if (options_.mesh != nullptr) ranks_ = std::make_unique<Ranks>(*options_.mesh);
  ir::Graph model = loss_graph;
  model.sort();
  lower::TrainingForm form = lower::training_form(model, options_.freeze);
  states_ = std::make_unique<TrainStates>(std::move(model), place_of(options_), options_.mesh);
  if (runner_.is_on_device())
    states_->live_on(runner_.device(), runner_.stream(), *runner_.binding().staging);
  states_->take(form.states);
  lower::StepTarget target{options_, place_of(options_), compile_options(options_, runner_)};
  lowering_ = std::make_unique<lower::StepLowering>(std::move(form), std::move(target), runner_.packs(),
                                                    ranks_.get());
}

TrainSession::~TrainSession() = default;

ir::Graph TrainSession::trained_graph(bool ema) const {
  return states_->trained_graph(ema, lowering_->graphs().holders());
}

void TrainSession::lend_weights(const PreparedModel& model) {
  if (runner_.is_on_device()) states_->lend(model, runner_.device());
}

void TrainSession::states_changed() { states_->changed(); }

void TrainSession::settle(const lower::StepGraph& step) {
  states_->settle(step);
  if (!step.optimizer_text.empty()) optimizer_text_ = step.optimizer_text;
  if (!step.precision_text.empty()) precision_text_ = step.precision_text;
}

/// `is_used`: by all ranks, which must evict programs together; false to look at a program only here.
std::shared_ptr<BoundStep> TrainSession::part_of_step(const StepKey& key, bool is_used) {
  const std::shared_ptr<BoundStep>* const found = is_used ? nullptr : steps_.peek(key);
  if (found != nullptr) return *found;
  return steps_.find(key, [&] {
    lower::LoweredStep lowered = lowering_->lower(key);
    settle(lowered.step);
    std::shared_ptr<BoundStep> made =
        runner_.bind(std::move(lowered.step.graph), std::move(lowered.program), *states_);
    StepRunner::add_results(*made);
    return std::make_unique<std::shared_ptr<BoundStep>>(std::move(made));
  });
}

/// `is_used`: as in part_of_step.
TrainPipeline& TrainSession::pipeline_for(const std::vector<Dims>& shapes, size_t micro_batches,
                                          bool is_used) {
  const StepKey key{shapes, micro_batches, StepPart::update};
  TrainPipeline* const found = is_used ? nullptr : pipelines_.peek(key);
  if (found != nullptr) return *found;
  return pipelines_.find(key, [&] {
    comm::Communicator& stages = options_.mesh->axis("pp");
    runtime::DeviceBinding& on = runner_.binding();
    if (links_ == nullptr)
      links_ =
          std::make_unique<PipelineLinks>(stages, options_.strategy.chunks > 1, on.device, on.ranks.get());
    lower::LoweredPipeline lowered = lowering_->lower_pipeline(key);
    const auto& holders = lowering_->graphs().holders();
    states_->forget_other_stages(holders);
    for (const lower::LoweredStage& chunk : lowered.chunks) settle(chunk.step);
    settle(lowered.tied.step);
    settle(lowered.update.step);
    return std::make_unique<TrainPipeline>(std::move(lowered), holders, runner_, *states_, *links_);
  });
}

std::vector<Dims> TrainSession::shapes_of(const Feeds& feeds) const {
  const size_t wanted = states_->model().inputs().size();
  base::require(feeds.size() == wanted, "the loss takes ", wanted, " inputs, got ", feeds.size());
  std::vector<Dims> shapes;
  for (size_t i = 0; i < feeds.size(); ++i) {
    const ir::Value& v = states_->model().value(states_->model().inputs()[i]);
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
  if (lowering_->stages() > 1) {
    pipeline_for(shapes, micro_batches, true);
    return;
  }
  if (micro_batches > 1) part_of_step({shapes, micro_batches, StepPart::more}, true);
  part_of_step({shapes, micro_batches, StepPart::last}, true);
}

std::vector<const compile::Program*> TrainSession::programs(const std::vector<Dims>& shapes,
                                                            size_t micro_batches) {
  if (lowering_->stages() > 1) return pipeline_for(shapes, micro_batches, false).programs();
  std::vector<const compile::Program*> list;
  if (micro_batches > 1)
    list.push_back(part_of_step({shapes, micro_batches, StepPart::more}, false)->program.get());
  list.push_back(part_of_step({shapes, micro_batches, StepPart::last}, false)->program.get());
  return list;
}

std::optional<double> TrainSession::device_product_rate() {
  if (!runner_.is_on_device() || runner_.device().ordinal() < 0) return std::nullopt;
  const runtime::Ceilings most =
      runtime::measure_ceilings(runner_.device(), runner_.pool(), {.scale = 0.5, .seconds = 0.05});
  const bool is_low = options_.strategy.precision.compute != passes::Precision::f32;
  const tensor::DType type = options_.strategy.precision.compute == passes::Precision::f16
                                 ? tensor::DType::f16
                             : is_low ? tensor::DType::bf16
                                      : tensor::DType::f32;
  return most.tflop_s(type) * 1e12;
}

std::string TrainSession::host_operators(const std::vector<Dims>& shapes, size_t micro_batches) {
  std::string all;
  if (!runner_.is_on_device()) return all;
  for (const compile::Program* program : programs(shapes, micro_batches)) {
    const std::string names = program->host_operators();
    if (!names.empty() && all.find(names) == std::string::npos) all += (all.empty() ? "" : "; ") + names;
  }
  return all;
}

const runtime::Trace& TrainSession::trace(const std::vector<Dims>& shapes, size_t micro_batches) {
  if (lowering_->stages() > 1) return pipeline_for(shapes, micro_batches, false).trace();
  return part_of_step({shapes, micro_batches, micro_batches > 1 ? StepPart::more : StepPart::last}, false)
      ->trace;
}

std::string TrainSession::pipeline_text(const std::vector<Dims>& shapes, size_t micro_batches) {
  if (lowering_->stages() == 1) return "";
  const passes::PipelineOrder& order = pipeline_for(shapes, micro_batches, false).order();
  return passes::to_text(lowering_->graphs().pipeline_cut(), order);
}

int64_t TrainSession::pipeline_bytes(const std::vector<Dims>& shapes, size_t micro_batches) {
  return lowering_->stages() == 1 ? 0 : pipeline_for(shapes, micro_batches, false).buffer_bytes();
}

/// The scalars of this rank's micro-batch `m` of `count`.
static StepScalars scalars_of(const TrainSession& session, const StepInputs& inputs, const Feeds& feeds,
                              size_t m, size_t count) {
  const int64_t rows = feeds.empty() || feeds[0].rank() == 0 ? 1 : feeds[0].dims()[0];
  const auto place = static_cast<int64_t>(session.own_micro_batch(m, count));
  return {inputs, {inputs.seed, inputs.draw, inputs.first_row + place * rows}, static_cast<int64_t>(m)};
}

StepResult TrainSession::step(std::span<const Feeds> micro_batches, const StepInputs& inputs) {
  base::require(!micro_batches.empty(), "a step needs at least one micro-batch");
  const size_t count = micro_batches.size();
  if (lowering_->stages() > 1) {
    const std::vector<Dims> shapes = shapes_of(micro_batches[0]);
    for (const Feeds& feeds : micro_batches)
      base::require(shapes_of(feeds) == shapes, "the micro-batches of a pipeline's step have one shape");
    return pipeline_for(shapes, count, true).step(micro_batches, [&](size_t m) {
      return scalars_of(*this, inputs, micro_batches[m], m, count);
    });
  }
  std::vector<std::shared_ptr<BoundStep>> parts;  // micro-batches may be of more sizes than are kept
  for (size_t m = 0; m < count; ++m) {
    const StepPart part = m + 1 < count ? StepPart::more : StepPart::last;
    parts.push_back(part_of_step({shapes_of(micro_batches[m]), count, part}, true));
  }
  StepResult result;
  for (size_t m = 0; m < count; ++m) {
    runner_.run(*parts[m], micro_batches[m], scalars_of(*this, inputs, micro_batches[m], m, count), *states_);
    parts[m]->read_results(result);
    result.communication_ns += parts[m]->executor->communication().total_ns;
    result.exposed_ns += parts[m]->executor->communication().exposed_ns;
  }
  return result;
}

}  // namespace trireme::engine
