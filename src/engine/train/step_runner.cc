// Runs the compiled parts of a training step on this rank's device.
#include "engine/train/step_runner.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/machine/cpu_info.h"
#include "comm/mesh.h"
#include "engine/train/train_session.h"
#include "passes/train/train.h"
#include "runtime/open_device.h"

namespace trireme::engine {

const void* StepScalars::find(std::string_view name) const {
  if (name == passes::kRngInput) return rng.data();
  if (name == passes::kCountInput) return &count;
  if (name == passes::kLossWeightInput) return &inputs.loss_weight;
  if (name == passes::kLrInput) return &inputs.lr;
  if (name == passes::kStepInput) return &inputs.step;
  if (name == passes::kGradScaleInput) return &inputs.grad_scale;
  if (name == passes::kNormLimitInput) return &inputs.norm_limit;
  if (name == passes::kLossLimitInput) return &inputs.loss_limit;
  return nullptr;
}

double BoundStep::number(std::string_view name) const {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? 0 : results[static_cast<size_t>(at - names.begin())].to_doubles()[0];
}

void BoundStep::read_results(StepResult& result) const {
  result.loss_sum = number(lower::kLossOutput);
  result.count = number("count");
  result.correct = number("correct");
  result.grad_norm = number("grad_norm");
  result.skipped = number("skipped") != 0;
  const int64_t traced = std::accumulate(trace.step_ns.begin(), trace.step_ns.end(), int64_t{0});
  const double scale =
      run_ns == 0 || traced == 0 ? 1 : static_cast<double>(run_ns) / static_cast<double>(traced);
  for (size_t s = 0; s < phases.size(); ++s) {
    int64_t& ns = phases[s] == lower::StepPhase::forward    ? result.forward_ns
                  : phases[s] == lower::StepPhase::backward ? result.backward_ns
                                                            : result.update_ns;
    ns += static_cast<int64_t>(static_cast<double>(trace.step_ns[s]) * scale);
  }
}

StepRunner::StepRunner(const TrainOptions& options)
    : pool_(options.threads > 0 ? options.threads : base::read_cpu_info().threads(), options.cpus),
      device_name_(options.mesh == nullptr ? options.device
                                           : runtime::device_of_rank(options.device, options.mesh->world())),
      device_(runtime::open_device(device_name_)),
      stream_(device_->open_stream(pool_)),
      mesh_(options.mesh),
      on_(runtime::bind_device(*device_, pool_, packs_, options.graphs, options.mesh)) {}

std::unique_ptr<BoundStep> StepRunner::bind(ir::Graph graph, std::shared_ptr<const compile::Program> program,
                                            TrainStates& states,
                                            const std::function<bool(const std::string&)>& is_crossing) {
  auto made = std::make_unique<BoundStep>();
  made->graph = std::move(graph);
  made->program = compile::bind(std::move(program), {packs_});  // packs frozen weights
  const compile::Program& p = *made->program;
  std::vector<void*> addresses;
  for (const compile::SlotId id : p.states) addresses.push_back(states.address(p.slot(id).name));
  runtime::DeviceBinding on = on_;
  if (is_crossing && is_on_device()) {
    for (const std::string& name : p.input_names) on.inputs_there.push_back(is_crossing(name));
    for (const std::string& name : p.output_names) on.outputs_there.push_back(is_crossing(name));
  }
  made->executor = std::make_unique<runtime::Executor>(made->program, std::move(addresses), mesh_, on);
  made->phases = lower::phases_of(p);
  return made;
}

void StepRunner::add_results(BoundStep& step) {
  for (const compile::SlotId id : step.program->outputs) {
    const compile::Slot& slot = step.program->slot(id);
    step.results.push_back(tensor::Tensor::zeros(slot.dtype, slot.dims));
  }
}

void StepRunner::use_arena(BoundStep& p) {
  if (p.executor->arena_bytes() > arena_bytes_) {
    arena_.reset();
    arena_ = device_->allocate(p.executor->arena_bytes());
    arena_bytes_ = p.executor->arena_bytes();
  }
  if (p.arena == arena_.get() && p.arena != nullptr) return;
  p.executor->bind_arena(arena_.get());
  p.arena = arena_.get();
}

void StepRunner::run(BoundStep& p, TrainStates& states) {
  use_arena(p);
  if (!is_on_device()) return p.executor->run(p.in, p.out, *stream_, &p.trace);
  states.upload();
  const bool is_first = p.trace.step_ns.empty();
  const auto start = std::chrono::steady_clock::now();
  p.executor->run(p.in, p.out, *stream_, is_first ? &p.trace : nullptr);
  p.run_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  states.mark_written(*p.program);
}

void StepRunner::run(BoundStep& p, const std::vector<tensor::Tensor>& feeds, const StepScalars& scalars,
                     TrainStates& states) {
  p.in.clear();
  p.out.clear();
  for (size_t i = 0; i < p.program->inputs.size(); ++i) {
    const void* scalar = scalars.find(p.program->input_names[i]);
    p.in.push_back(scalar != nullptr ? scalar : feeds.at(i).raw());
  }
  for (tensor::Tensor& t : p.results) p.out.push_back(t.mutable_raw());
  run(p, states);
}

}  // namespace trireme::engine
