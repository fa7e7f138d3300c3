// Training steps of a pipeline stage.
#include "engine/train/train_pipeline.h"

#include <algorithm>

#include "engine/train/train_session.h"

namespace trireme::engine {

using passes::PipelineAction;
using passes::PipelineWork;
using tensor::Tensor;

namespace {

/// The start of the buffer of a micro-batch; null for a slot without a buffer.
std::byte* address_of(const PipelineBuffers& buffers, const lower::StageSlot& slot) {
  using B = lower::StageBuffer;
  std::byte* const begins[] = {
      nullptr,      buffers.in,  buffers.out, buffers.in_gradient, buffers.out_gradient,
      buffers.kept, buffers.late};
  static_assert(static_cast<size_t>(B::late) + 1 == std::size(begins));
  return slot.buffer == B::none ? nullptr : begins[static_cast<size_t>(slot.buffer)] + slot.offset;
}

PipelineBytes stage_bytes(const lower::LoweredStage& stage) {
  return {.in = stage.in.bytes,
          .out = stage.out.bytes,
          .out_gradient = stage.out_gradient.bytes,
          .in_gradient = stage.in_gradient.bytes,
          .kept = stage.kept.bytes,
          .late = stage.late.bytes,
          .first_layer = stage.first_layer,
          .last_layer = stage.last_layer};
}

}  // namespace

/// A part of the model on this stage, with its programs.
struct TrainPipeline::Part {
  struct Work {
    std::unique_ptr<BoundStep> step;  ///< null if the schedule has no such work
    std::vector<lower::StageSlot> in, out;
  };
  Work forward, backward, weights;

  Work& of(PipelineWork work) {
    return work == PipelineWork::forward           ? forward
           : work == PipelineWork::weight_gradient ? weights
                                                   : backward;
  }
};

TrainPipeline::TrainPipeline(lower::LoweredPipeline lowered,
                             const std::map<std::string, std::vector<int>>& holders, StepRunner& runner,
                             TrainStates& states, PipelineLinks& links)
    : runner_(runner), states_(states), stages_(links.stages), holders_(holders) {
  std::vector<PipelineBytes> bytes;
  for (lower::LoweredStage& stage : lowered.chunks) {
    const auto is_crossing = [&](const std::string& name) {
      return stage.slot(name).buffer != lower::StageBuffer::none;
    };
    const auto bound = [&](lower::StageProgram& p) {
      Part::Work work;
      if (p.program != nullptr)
        work.step = runner.bind(std::move(p.graph), std::move(p.program), states, is_crossing);
      work.in = std::move(p.in);
      work.out = std::move(p.out);
      return work;
    };
    bytes.push_back(stage_bytes(stage));
    parts_.push_back({bound(stage.forward), bound(stage.backward), bound(stage.weights)});
  }
  const auto whole = [&](lower::LoweredStep& step) {
    auto made = runner.bind(std::move(step.step.graph), std::move(step.program), states);
    StepRunner::add_results(*made);
    return made;
  };
  if (!lowered.tied.program->outputs.empty()) tied_ = whole(lowered.tied);
  update_ = whole(lowered.update);
  runs_ = std::make_unique<PipelineRunner>(lowered.order, std::move(bytes), links, runner.device());
}

TrainPipeline::~TrainPipeline() = default;

std::vector<const compile::Program*> TrainPipeline::programs() const {
  std::vector<const compile::Program*> list;
  for (const Part& part : parts_) {
    for (const Part::Work* work : {&part.forward, &part.backward, &part.weights}) {
      if (work->step != nullptr) list.push_back(work->step->program.get());
    }
  }
  list.push_back(update_->program.get());
  return list;
}

const runtime::Trace& TrainPipeline::trace() const { return parts_[0].forward.step->trace; }

/// Adds up `mine` over the stages that hold it: the first of them adds the others' values in the order of the
/// stages, and sends the sum to all. (Two stages exchange values instead, as a + b is b + a.)
void TrainPipeline::add_over_stages(Tensor& mine, const std::vector<int>& holders) {
  comm::Communicator& pp = stages_;
  constexpr const char* kSource = "tied weight";
  Tensor other = Tensor::empty(mine.dtype(), mine.dims());
  const auto bytes = [](Tensor& t) { return std::span(t.mutable_raw(), static_cast<size_t>(t.bytes())); };
  const auto add = [&] {
    const auto sum = mine.mutable_data<float>();
    const auto more = other.data<float>();
    constexpr int64_t kGrain = 1 << 14;
    runner_.pool().for_range(mine.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) sum[i] += more[i];
    });
  };
  const int first = holders.front();
  if (holders.size() == 2) {
    const int peer = pp.rank() == first ? holders.back() : first;
    pp.exchange(bytes(mine), bytes(other), {peer, peer}, kSource);
    return add();
  }
  for (size_t i = 1; i < holders.size(); ++i) {
    if (pp.rank() == first) pp.recv(bytes(other), holders[i], kSource), add();
    if (pp.rank() == holders[i]) pp.send(bytes(mine), first, kSource);
  }
  for (size_t i = 1; i < holders.size(); ++i) {
    if (pp.rank() == first) pp.send(bytes(mine), holders[i], kSource);
    if (pp.rank() == holders[i]) pp.recv(bytes(mine), first, kSource);
  }
}

/// Gradients of parameters that several stages hold: every stage gets their sum.
void TrainPipeline::add_tied(const StepScalars& scalars) {
  runner_.run(*tied_, {}, scalars, states_);
  for (size_t i = 0; i < tied_->results.size(); ++i) {
    const std::string& name = tied_->graph.output_names()[i];
    const std::string param = name.substr(0, name.size() - lower::tied_sum("").size());
    add_over_stages(tied_->results[i], holders_.at(param));
    states_.scratch().set(name, tied_->results[i]);
  }
}

/// Runs one program for one micro-batch.
void TrainPipeline::act(const PipelineAction& action, const PipelineBuffers& buffers, const Feeds& feeds,
                        const StepScalars& scalars) {
  Part::Work& work = parts_[static_cast<size_t>(action.chunk)].of(action.work);
  BoundStep& step = *work.step;
  step.in.clear();
  step.out.clear();
  for (size_t i = 0; i < work.in.size(); ++i) {
    const void* scalar = scalars.find(step.program->input_names[i]);
    const std::byte* crossing = address_of(buffers, work.in[i]);
    step.in.push_back(scalar != nullptr     ? scalar
                      : crossing != nullptr ? crossing
                                            : feeds.at(work.in[i].feed).raw());
  }
  for (const lower::StageSlot& slot : work.out) step.out.push_back(address_of(buffers, slot));
  runner_.run(step, states_);
}

/// Adds the times of the micro-batches on this stage.
void TrainPipeline::add_times(StepResult& result, const PipelineReport& report, size_t micro_batches) const {
  constexpr double kNs = 1e9;
  const double n = static_cast<double>(micro_batches) * kNs;
  for (size_t c = 0; c < parts_.size(); ++c) {
    const size_t part = c * static_cast<size_t>(stages_.size()) + static_cast<size_t>(stages_.rank());
    const passes::PipelineTimes::Part& times = report.times.parts[part];
    result.forward_ns += static_cast<int64_t>(n * times.forward);
    result.backward_ns +=
        static_cast<int64_t>(n * (times.backward + times.input_gradient + times.weight_gradient));
  }
}

StepResult TrainPipeline::step(std::span<const Feeds> micro_batches, const ScalarsOf& scalars) {
  // Only partial sums change here: if a stage fails, no stage has changed its weights.
  const PipelineReport report = runs_->run([&](const PipelineAction& a, const PipelineBuffers& buffers) {
    const auto m = static_cast<size_t>(a.micro_batch);
    act(a, buffers, micro_batches[m], scalars(m));
  });
  if (tied_ != nullptr) add_tied(scalars(0));
  runner_.run(*update_, {}, scalars(0), states_);
  StepResult result;
  update_->read_results(result);
  result.bubble = report.bubble;
  result.expected_bubble = report.predicted;
  add_times(result, report, micro_batches.size());
  return result;
}

}  // namespace trireme::engine
