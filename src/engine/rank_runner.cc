// Runs one rank's programs of a model that several ranks hold together: activations come from the stage
// before, go to the next, results to the first rank.
#include "engine/rank_runner.h"

#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using tensor::Dims;
using tensor::Tensor;

comm::Bytes bytes_of(Tensor& t) { return {t.mutable_raw(), static_cast<size_t>(t.bytes())}; }

std::vector<Dims> shapes_of(const std::vector<Tensor>& tensors) {
  std::vector<Dims> shapes;
  for (const Tensor& t : tensors) shapes.push_back(t.dims());
  return shapes;
}

Tensor memory_for(const compile::Slot& slot) { return Tensor::empty(slot.dtype, slot.dims); }

}  // namespace

RankRunner::RankRunner(RankModel& model, comm::Mesh& mesh, const SessionOptions& options)
    : model_(model),
      mesh_(mesh),
      pool_(options.threads, options.cpus),
      device_(runtime::open_device(options.device)),
      stream_(device_->open_stream(pool_)) {}

RankRunner::Bound& RankRunner::bound_for(const std::vector<Dims>& shapes) {
  const auto found = bound_.find(shapes);
  if (found != bound_.end()) return found->second;
  Bound bound{.program = &model_.program_for(shapes)};
  const compile::Program& p = *bound.program->program;
  bound.executor = std::make_unique<runtime::Executor>(bound.program->program, std::vector<void*>(), &mesh_);
  for (const compile::SlotId id : bound.program->in) bound.in.push_back(memory_for(p.slot(id)));
  // The first rank of a model without stages has its results written where the caller wants them.
  const bool is_first = mesh_.world().rank() == 0;
  if (model_.stages() > 1 || !is_first) {
    for (const compile::SlotId id : p.outputs) bound.out.push_back(memory_for(p.slot(id)));
  }
  return bound_.emplace(shapes, std::move(bound)).first->second;
}

const compile::Program& RankRunner::prepare(const std::vector<Dims>& shapes) {
  Bound& bound = bound_for(shapes);
  bind_arena(bound);
  return *bound.program->program;
}

void RankRunner::bind_arena(Bound& bound) {
  const int64_t bytes = std::max<int64_t>(64, bound.program->program->memory.arena_bytes);
  if (bytes > arena_bytes_) {
    arena_.reset();
    arena_ = device_->allocate(bytes);
    arena_bytes_ = bytes;
  }
  if (bound.arena == arena_.get()) return;
  bound.executor->bind_arena(arena_.get());
  bound.arena = arena_.get();
}

void RankRunner::run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, runtime::Trace* trace) {
  Bound& bound = bound_for(shapes_of(inputs));
  bind_arena(bound);
  const int stage = model_.stage(), last = model_.stages() - 1;
  comm::Communicator* stages = last > 0 ? &mesh_.axis("pp") : nullptr;
  for (Tensor& t : bound.in) stages->recv(bytes_of(t), stage - 1, "activations of the stage before");
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const size_t i : bound.program->inputs) in.push_back(inputs[i].raw());
  for (const Tensor& t : bound.in) in.push_back(t.raw());
  for (Tensor& t : bound.out.empty() ? outputs : bound.out) out.push_back(t.mutable_raw());
  bound.executor->run(in, out, *stream_, trace);
  if (stage < last) {
    for (Tensor& t : bound.out) stages->send(bytes_of(t), stage + 1, "activations for the next stage");
  }
  if (last > 0) deliver(stage == last ? bound.out : outputs);
}

/// From the last stage to the first, on the ranks that stand where the first rank does on the other axes.
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
