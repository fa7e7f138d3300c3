// Lowers a loss graph to the programs of a training step on one rank.
#include "lower/step_lowering.h"

#include <algorithm>

#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/precision/casts.h"
#include "passes/precision/float8.h"
#include "passes/precision/precision.h"
#include "passes/precision/wide_gradients.h"

namespace trireme::lower {

using passes::RecomputePlan;

/// More than a step has parts on any stage, so that all its plans are kept until it is lowered.
constexpr size_t kMostPlans = 256;

StepLowering::StepLowering(TrainingForm form, StepTarget target, base::SharedCache& packs,
                           Agreement* agreement)
    : form_(std::move(form)),
      options_(std::move(target.options)),
      place_(std::move(target.place)),
      compile_(std::move(target.compile)),
      packs_(packs),
      agreement_(agreement),
      graphs_(form_.graph, options_, place_),
      chosen_(kMostPlans) {
  options_.strategy.check(passes::Purpose::training);
  compile_.overlap = options_.strategy.overlap;
}

StepLowering::~StepLowering() = default;

void StepLowering::fuse(ir::Graph& graph) const {
  // Before the passes, so that widened nodes still fuse, and after them for the nodes that they added.
  const bool is_mixed = options_.strategy.precision.compute != passes::Precision::f32;
  if (is_mixed) passes::widen_weight_gradients(graph);
  if (options_.strategy.precision.compute == passes::Precision::fp8) passes::lower_float8(graph, compile_.on);
  if (is_mixed) passes::widen_unsupported(graph, compile_.on);
  passes::run_passes(passes::step_passes(compile_.on), graph, options_.passes);
  if (!is_mixed) return;
  passes::widen_unsupported(graph, compile_.on);
  passes::localise_casts(graph);
  passes::run_passes(passes::cast_passes(compile_.on), graph, options_.passes);
}

std::shared_ptr<const compile::Program> StepLowering::compile(ir::Graph& graph, bool gathers_again) {
  passes::run_passes(passes::program_passes(compile_.on), graph, options_.passes);
  if (gathers_again) passes::gather_again(graph);
  if (!place_.is_alone()) passes::fix_collective_order(graph);
  return std::make_shared<const compile::Program>(compile::plan(graph, compile_, packs_));
}

/// Plans in the order of recomputed work: none, then cheap ops, then more and more segments.
std::vector<RecomputePlan> StepLowering::by_work(const ir::Graph& graph) const {
  std::vector<RecomputePlan> plans{plan_recompute(graph, passes::RecomputeMode::none),
                                   plan_recompute(graph, passes::RecomputeMode::selective)};
  const size_t cuts = passes::count_cuts(graph);
  for (size_t segments = 2; segments <= cuts + 1; segments = segments * 3 / 2 + 1) {
    plans.push_back(plan_recompute(graph, passes::RecomputeMode::full, segments));
  }
  plans.push_back(plan_recompute(graph, passes::RecomputeMode::full));
  std::stable_sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) { return a.flop < b.flop; });
  return plans;
}

/// The first rank with common collectives; null if it is this one, or if ranks communicate to agree.
StepLowering* StepLowering::first_rank() {
  if (agreement_ != nullptr || place_.is_alone()) return nullptr;
  RankPlace first = place_;
  for (const char* axis : {"dp", "tpr", "tp"}) first.coordinates[first.mesh.index_of(axis)] = 0;
  if (first.coordinates == place_.coordinates) return nullptr;
  if (first_ == nullptr)
    first_ = std::make_unique<StepLowering>(form_, StepTarget{options_, std::move(first), compile_}, packs_);
  return first_.get();
}

/// Candidate plans, of which the first that fits the budget is used. Without a budget there is one.
std::vector<RecomputePlan> StepLowering::plans_for(const ir::Graph& graph, const StepKey& key) {
  const bool decides = options_.strategy.recompute.is_on();
  if (StepLowering* first = decides ? first_rank() : nullptr) {
    if (first->chosen_.peek(key) == nullptr) {  // in a pipeline, of all its parts
      stages() > 1 ? static_cast<void>(first->lower_pipeline(key)) : static_cast<void>(first->lower(key));
    }
    const RecomputePlan* chosen = first->chosen_.peek(key);
    base::check(chosen != nullptr, "the first rank has no plan for this part of a step");
    return {*chosen};
  }
  std::vector<RecomputePlan> plans;
  if (options_.strategy.recompute.activation_bytes > 0) {
    plans = by_work(graph);
  } else {
    plans.push_back(passes::plan_recompute(graph, options_.strategy.recompute.mode));
  }
  if (agreement_ != nullptr) agreement_->share(plans);
  return plans;
}

void StepLowering::fail_budget(int64_t least) const {
  base::fail(base::ErrorCode::exhausted, "activations need ", least,
             " bytes with everything recomputed, the budget is ",
             options_.strategy.recompute.activation_bytes, "; a smaller micro-batch needs less");
}

LoweredStep StepLowering::finish(StepGraph step, const StepKey& key) {
  fuse(step.graph);
  int64_t least = INT64_MAX;
  for (const RecomputePlan& plan : plans_for(step.graph, key)) {
    ir::Graph graph = step.graph;
    passes::recompute(graph, plan);
    graph.sort();
    auto program = compile(graph, options_.strategy.zero == 3);
    if (options_.strategy.recompute.activation_bytes > 0) {
      const int64_t bytes = largest(program->memory.arena_bytes);
      least = std::min(least, bytes);
      if (bytes > options_.strategy.recompute.activation_bytes) continue;
    }
    chosen_.find(key, [&] { return std::make_unique<RecomputePlan>(plan); });
    step.graph = std::move(graph);
    return {std::move(step), std::move(program)};
  }
  fail_budget(least);
}

LoweredStep StepLowering::lower(const StepKey& key) { return finish(graphs_.make(key, form_.params), key); }

/// With a budget, the plan recomputes as little as possible such that this part's programs and buffers fit
/// its share.
LoweredStage StepLowering::lower_chunk(const StepKey& key, const passes::PipelineSlots& slots) {
  StageGraph stage = graphs_.make_stage(key, form_.params);
  fuse(stage.step.graph);
  std::vector<std::string> inputs;
  for (const ir::ValueId id : form_.graph.inputs()) inputs.push_back(form_.graph.value(id).name);
  const bool splits = options_.strategy.schedule == passes::PipelineSchedule::zero_bubble;
  int64_t least = INT64_MAX;
  for (const RecomputePlan& plan : plans_for(stage.step.graph, key)) {
    passes::PipelinePart part{stage.step.graph, stage.in, stage.out};
    passes::recompute(part.graph, plan);
    part.graph.sort();
    LoweredStage made =
        lower_stage(part, splits, inputs, [&](ir::Graph& graph) { return compile(graph, false); });
    if (options_.strategy.recompute.activation_bytes > 0) {
      const int64_t bytes = largest(made.peak_bytes(slots)) * options_.strategy.chunks;
      least = std::min(least, bytes);
      if (bytes > options_.strategy.recompute.activation_bytes) continue;
    }
    chosen_.find(key, [&] { return std::make_unique<RecomputePlan>(plan); });
    made.step = std::move(stage.step);
    return made;
  }
  fail_budget(least);
}

LoweredPipeline StepLowering::lower_pipeline(const StepKey& key) {
  const passes::Strategy& strategy = options_.strategy;
  LoweredPipeline made{.order = passes::make_pipeline_order(
                           strategy.schedule, {.stages = stages(),
                                               .micro_batches = static_cast<int>(key.micro_batches),
                                               .chunks = strategy.chunks})};
  const auto slots = passes::plan_pipeline_slots(made.order)[static_cast<size_t>(graphs_.stage())];
  StepKey part = key;
  part.part = StepPart::stage;
  for (part.chunk = 0; part.chunk < slots.size(); ++part.chunk) {
    made.chunks.push_back(lower_chunk(part, slots[part.chunk]));
    made.buffer_bytes += made.chunks.back().buffer_bytes(slots[part.chunk]);
  }
  StepKey whole = key;
  whole.chunk = 0;
  whole.part = StepPart::tied;
  made.tied = finish(graphs_.make_tied(whole), whole);
  whole.part = StepPart::update;
  made.update = finish(graphs_.make_update(whole), whole);
  return made;
}

}  // namespace trireme::lower
