// Runs one rank's programs of a model that several ranks hold: receives activations from the previous stage,
// sends them to the next one, and sends results to the first rank.
#include "engine/ranks/rank_runner.h"

#include "engine/ranks/tensor_lists.h"
#include "runtime/device_ranks.h"

namespace trireme::engine {

using tensor::Dims;
using tensor::Tensor;

RankRunner::RankRunner(RankModel& model, comm::Mesh& mesh, const SessionOptions& options)
    : model_(model),
      mesh_(mesh),
      pool_(options.threads, options.cpus),
      device_(model.device()),
      stream_(device_.open_stream(pool_)),
      on_(runtime::bind_device(device_, pool_, model.packs(), options.graphs, &mesh)),
      bound_(options.max_programs) {
  if (model.stages() > 1)
    links_ = std::make_unique<PipelineLinks>(mesh.axis("pp"), false, on_.device, on_.ranks.get());
}

RankRunner::Bound& RankRunner::bound_for(const std::vector<Dims>& shapes) {
  return bound_.find(shapes, [&] { return bind(shapes); });
}

std::unique_ptr<RankRunner::Bound> RankRunner::bind(const std::vector<Dims>& shapes) {
  auto made = std::make_unique<Bound>();
  Bound& bound = *made;
  bound.program = model_.program_for(shapes);
  runtime::DeviceBinding on = on_;
  if (on.device != nullptr) {  // values between stages stay on the device
    on.inputs_there.assign(bound.program->inputs.size(), false);
    on.inputs_there.resize(bound.program->program->inputs.size(), true);
    on.outputs_there.assign(bound.program->out.size(), true);
    on.outputs_there.resize(bound.program->program->outputs.size(), false);
  }
  bound.executor =
      std::make_unique<runtime::Executor>(bound.program->program, std::vector<void*>(), &mesh_, on);
  // In a model without stages the first rank writes results directly to the caller's memory.
  const bool is_last = model_.stage() + 1 == model_.stages();
  if (is_last && (model_.stages() > 1 || mesh_.world().rank() != 0)) {
    for (const tensor::TensorType& t : bound.program->results)
      bound.results.push_back(Tensor::empty(t.dtype, t.shape.to_dims()));
  }
  if (model_.stages() > 1) add_stages(bound);
  return made;
}

const compile::Program& RankRunner::prepare(const std::vector<Dims>& shapes) {
  Bound& bound = bound_for(shapes);
  bind_arena(bound);
  return *bound.program->program;
}

void RankRunner::bind_arena(Bound& bound) {
  const int64_t bytes = std::max<int64_t>(64, bound.executor->arena_bytes());
  if (bytes > arena_bytes_) {
    arena_.reset();
    arena_ = device_.allocate(bytes);
    arena_bytes_ = bytes;
  }
  if (bound.arena == arena_.get()) return;
  bound.executor->bind_arena(arena_.get());
  bound.arena = arena_.get();
}

/// Lays out the values that cross stages, and prepares the run over micro-batches.
void RankRunner::add_stages(Bound& bound) {
  const compile::Program& p = *bound.program->program;
  const auto lay_out = [&](const std::vector<compile::SlotId>& slots, std::vector<int64_t>& offsets) {
    constexpr int64_t kAlign = 64;
    int64_t bytes = 0;
    for (const compile::SlotId id : slots) {
      offsets.push_back(bytes);
      bytes += (p.slot(id).bytes + kAlign - 1) / kAlign * kAlign;
    }
    return bytes;
  };
  const PipelineBytes bytes{.in = lay_out(bound.program->in, bound.in),
                            .out = lay_out(bound.program->out, bound.out)};
  bound.stages = std::make_unique<PipelineRunner>(
      passes::make_inference_order(
          {.stages = model_.stages(), .micro_batches = bound.program->micro_batches}),
      std::vector<PipelineBytes>{bytes}, *links_, device_);
}

void RankRunner::run_micro_batch(Bound& bound, int micro_batch, const PipelineBuffers& buffers,
                                 const std::vector<Tensor>& inputs, runtime::Trace* trace) {
  const int64_t parts = bound.program->micro_batches;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const size_t i : bound.program->inputs)
    in.push_back(inputs[i].raw() + inputs[i].bytes() / parts * micro_batch);
  for (const int64_t at : bound.in) in.push_back(buffers.in + at);
  for (const int64_t at : bound.out) out.push_back(buffers.out + at);
  for (Tensor& t : bound.results) out.push_back(t.mutable_raw() + t.bytes() / parts * micro_batch);
  bound.executor->run(in, out, *stream_, trace);
}

void RankRunner::run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, runtime::Trace* trace) {
  Bound& bound = bound_for(shapes_of(inputs));
  bind_arena(bound);
  if (bound.stages != nullptr) {
    bound.stages->run([&](const passes::PipelineAction& action, const PipelineBuffers& buffers) {
      run_micro_batch(bound, action.micro_batch, buffers, inputs, trace);
    });
    return deliver(bound.results.empty() ? outputs : bound.results);
  }
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const size_t i : bound.program->inputs) in.push_back(inputs[i].raw());
  for (Tensor& t : bound.results.empty() ? outputs : bound.results) out.push_back(t.mutable_raw());
  bound.executor->run(in, out, *stream_, trace);
}

/// Sends results from the last to the first stage, between ranks equal in all other coordinates.
void RankRunner::deliver(std::vector<Tensor>& results) {
  const int stage = model_.stage(), last = model_.stages() - 1;
  const tensor::MeshShape& shape = mesh_.shape();
  std::vector<int> at = mesh_.coordinates();
  at[shape.index_of("pp")] = 0;
  if (shape.rank(at) != 0 || (stage != 0 && stage != last)) return;
  comm::Communicator& stages = mesh_.axis("pp");
  for (Tensor& t : results) {
    if (stage == 0) {
      stages.recv(bytes_of(t), last, "results");
    } else {
      stages.send(bytes_of(t), 0, "results");
    }
  }
}

}  // namespace trireme::engine
