// The states that a training session keeps.
#include "engine/train/train_states.h"

#include <algorithm>

#include "comm/mesh.h"
#include "engine/prepared_model.h"
#include "engine/train/state_parts.h"

namespace trireme::engine {

using tensor::Tensor;

void TrainStates::live_on(tensor::Device& device, tensor::Stream& stream, runtime::Staging& staging) {
  kept_.live_on(device, stream, staging);
  scratch_.live_on(device, stream, staging);
}

/// Gives the model's param of that name this content.
void TrainStates::show(const std::string& name, const Tensor& content) {
  for (size_t i = 0; i < model_.values().size(); ++i) {
    ir::Value& v = model_.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param && v.name == name) v.data = content;
  }
}

void TrainStates::take(const std::vector<std::string>& params) {
  std::map<std::string_view, ir::Value*> by_name;
  for (size_t i = 0; i < model_.values().size(); ++i) {
    ir::Value& v = model_.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param) by_name.emplace(v.name, &v);
  }
  for (const std::string& name : params) {
    ir::Value& v = *by_name.at(name);
    kept_.add(name, v.data);
    v.data = kept_.at(name);  // releases the original content
  }
}

ir::Graph TrainStates::trained_graph(bool ema, const std::map<std::string, std::vector<int>>& holders) const {
  ir::Graph graph = model_;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || !kept_.has(v.name)) continue;
    const std::string averaged = v.name + ".ema";
    const std::string& name = ema && kept_.has(averaged) ? averaged : v.name;
    const Tensor& held = kept_.at(name);
    v.data = mesh_ == nullptr ? held : whole_of(held, kept_.place(name), *mesh_);
  }
  if (place_.mesh.has("pp") && place_.mesh.extent("pp") > 1) share_over_stages(graph, holders);
  return graph;
}

/// Params of other stages are broadcast from the first stage that holds them.
void TrainStates::share_over_stages(ir::Graph& graph,
                                    const std::map<std::string, std::vector<int>>& holders) const {
  comm::Communicator& pp = mesh_->axis("pp");
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    const auto held = holders.find(v.name);
    if (v.kind != ir::ValueKind::param || held == holders.end()) continue;
    if (static_cast<int>(held->second.size()) == place_.mesh.extent("pp")) continue;
    const bool is_mine = kept_.has(v.name);
    if (v.type.dtype != tensor::DType::f32 || (!is_mine && v.data.defined())) continue;
    // Every stage that holds a tied weight receives the same bytes that it has.
    if (!is_mine) v.data = Tensor::empty(v.type.dtype, v.type.shape.to_dims());
    pp.broadcast({v.data.mutable_raw(), static_cast<size_t>(v.data.bytes())}, held->second.front(), v.name);
  }
}

void TrainStates::lend(const PreparedModel& model, const tensor::Device& device) {
  kept_.upload();
  const StateStore& states = kept_;
  const std::string format = base::concat("on device ", device.ordinal());
  for (const ir::Value& v : model.graph().values()) {
    if (v.kind != ir::ValueKind::param || !v.data.defined()) continue;
    for (const std::string& name : {v.name, v.name + ".ema"}) {
      // Other params were gathered from several ranks, or changed by a pass.
      if (!states.has(name) || v.data.raw() != states.at(name).raw()) continue;
      model.packs().get<void>(ir::pack_key(v.data, format), [&] { return states.memory(name); });
    }
  }
}

void TrainStates::changed() {
  for (const auto& [copy, master] : copies_) {
    const Tensor& held = std::as_const(kept_).at(master);
    const Tensor whole = mesh_ == nullptr ? held : whole_of(held, kept_.place(master), *mesh_);
    const Tensor part = part_of(whole, scratch_.place(copy), place_.mesh, place_.coordinates);
    scratch_.set(copy, converted(part, scratch_.at(copy).dtype()));
  }
}

/// Gives a weight or running statistic the form that the step wants: whole, or this rank's part.
void TrainStates::settle_weight(const std::string& name, const ir::Value& wanted) {
  const StatePlace place{kept_.place(name).dims, wanted.shard};
  if (kept_.type(name) == wanted.type) return kept_.set_place(name, place);
  kept_.replace(name, part_of(kept_.at(name), place, place_.mesh, place_.coordinates), place);
  show(name, Tensor());
}

/// Adds the 16-bit copy of a weight, whole or in part.
void TrainStates::settle_copy(const std::string& copy, const std::string& master,
                              const lower::StepGraph& step) {
  copies_.emplace(copy, master);
  if (scratch_.has(copy)) return;
  const auto v = std::find_if(step.held.begin(), step.held.end(),
                              [&](const ir::Value& held) { return held.name == copy; });
  const StatePlace place{kept_.place(master).dims, v->shard};
  const Tensor part = part_of(kept_.at(master), place, place_.mesh, place_.coordinates);
  scratch_.add(copy, converted(part, v->type.dtype));
  scratch_.set_place(copy, place);
}

void TrainStates::settle_optimizer(const passes::OptimizerState& s) {
  if (kept_.has(s.name)) return;
  if (s.copy_of.empty()) {
    kept_.need_zeros(s.name, s.type);
    // The extents of a split state are those of its parameter.
    const tensor::Dims dims = s.shard.is_replicated() ? s.type.shape.to_dims() : kept_.place(s.of).dims;
    return kept_.set_place(s.name, {dims, s.shard});
  }
  const StatePlace of = kept_.place(s.copy_of), place{of.dims, s.shard};
  const Tensor& held = kept_.at(s.copy_of);
  if (held.type() == s.type) {
    kept_.add(s.name, held);
  } else {
    kept_.add(s.name, part_of(whole_of(held, of, *mesh_), place, place_.mesh, place_.coordinates));
  }
  kept_.set_place(s.name, place);
}

void TrainStates::settle(const lower::StepGraph& step) {
  for (const auto& [copy, master] : step.copies) settle_copy(copy, master, step);
  for (const ir::Value& v : step.held) {
    if (kept_.has(v.name)) settle_weight(v.name, v);
  }
  for (const passes::OptimizerState& s : step.states) settle_optimizer(s);
  for (const ir::Value& v : step.held) {
    if (!kept_.has(v.name)) scratch_.need_zeros(v.name, v.type);
  }
}

void TrainStates::forget_other_stages(const std::map<std::string, std::vector<int>>& holders) {
  const int stage = place_.on("pp");
  for (const auto& [name, held] : holders) {
    if (!kept_.has(name) || std::find(held.begin(), held.end(), stage) != held.end()) continue;
    show(name, Tensor());
    kept_.erase(name);
  }
}

void* TrainStates::address(const std::string& name) {
  return kept_.has(name) ? kept_.address(name) : scratch_.address(name);
}

void TrainStates::upload() {
  kept_.upload();
  scratch_.upload();
}

void TrainStates::mark_written(const compile::Program& program) {
  for (const compile::Step& step : program.steps) {
    for (const compile::SlotId id : step.out) {
      if (id == compile::kNoSlot || program.root(id).kind != compile::SlotKind::state) continue;
      const std::string& name = program.root(id).name;
      kept_.has(name) ? kept_.was_written(name) : scratch_.was_written(name);
    }
  }
}

}  // namespace trireme::engine
