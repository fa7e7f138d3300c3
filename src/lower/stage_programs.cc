// The programs of a pipeline stage in a training step.
#include "lower/stage_programs.h"

#include <algorithm>

namespace trireme::lower {
namespace {

const tensor::TensorType* type_of(const ir::Graph& graph, const std::string& name) {
  for (ir::ValueId id : graph.inputs()) {
    if (graph.value(id).name == name) return &graph.type(id);
  }
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? nullptr : &graph.type(graph.outputs()[static_cast<size_t>(at - names.begin())]);
}

/// Lays out crossing values and, for those that have one, their gradients.
void lay_out(const ir::Graph& graph, const std::vector<std::string>& names, BufferLayout& values,
             BufferLayout& gradients) {
  for (const std::string& name : names) {
    values.add(name, *type_of(graph, name));
    const std::string gradient = passes::crossing_gradient(name);
    if (const tensor::TensorType* type = type_of(graph, gradient)) gradients.add(gradient, *type);
  }
}

/// The layer that computes the last of the crossing values.
std::string maker_of(const ir::Graph& graph, const std::vector<std::string>& names) {
  const auto& outputs = graph.output_names();
  const auto at = names.empty() ? outputs.end() : std::find(outputs.begin(), outputs.end(), names.back());
  if (at == outputs.end()) return "loss";
  const ir::Node* node = graph.producer(graph.outputs()[static_cast<size_t>(at - outputs.begin())]);
  return node == nullptr ? names.back() : node->from;
}

/// The layer that first reads a crossing value.
std::string reader_of(const ir::Graph& graph, const std::vector<std::string>& names) {
  for (const ir::Node& node : graph.nodes()) {
    for (ir::ValueId id : node.in) {
      if (id == ir::kNoValue || graph.value(id).kind != ir::ValueKind::input) continue;
      if (std::find(names.begin(), names.end(), graph.value(id).name) != names.end()) return node.from;
    }
  }
  return "input";
}

/// Lays out results that one program passes to others.
void lay_out_results(const ir::Graph& graph, std::string_view prefix, BufferLayout& values) {
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const std::string& name = graph.output_names()[i];
    if (name.starts_with(prefix)) values.add(name, graph.type(graph.outputs()[i]));
  }
}

}  // namespace

void BufferLayout::add(const std::string& name, const tensor::TensorType& type) {
  constexpr int64_t kAlign = 64;
  at[name] = bytes;
  bytes += (tensor::bytes_of(type) + kAlign - 1) / kAlign * kAlign;
}

StageSlot LoweredStage::slot(const std::string& name) const {
  using B = StageBuffer;
  for (const auto& [layout, buffer] :
       {std::pair(&in, B::in), std::pair(&out, B::out), std::pair(&in_gradient, B::in_gradient),
        std::pair(&out_gradient, B::out_gradient), std::pair(&kept, B::kept), std::pair(&late, B::late)}) {
    if (const auto at = layout->at.find(name); at != layout->at.end()) return {buffer, at->second};
  }
  return {};
}

int64_t LoweredStage::peak_bytes(const passes::PipelineSlots& slots) const {
  int64_t arena = 0;
  for (const StageProgram* p : {&forward, &backward, &weights}) {
    if (p->program != nullptr) arena = std::max(arena, p->program->memory.arena_bytes);
  }
  return arena + buffer_bytes(slots);
}

int64_t LoweredStage::buffer_bytes(const passes::PipelineSlots& slots) const {
  return in.bytes * slots.in + out.bytes * slots.out + in_gradient.bytes * slots.in_gradient +
         out_gradient.bytes * slots.out_gradient + kept.bytes * slots.kept + late.bytes * slots.late;
}

const StageProgram& LoweredStage::program(passes::PipelineWork work) const {
  return work == passes::PipelineWork::forward           ? forward
         : work == passes::PipelineWork::weight_gradient ? weights
                                                         : backward;
}

LoweredStage lower_stage(const passes::PipelinePart& part, bool splits_weights,
                         const std::vector<std::string>& inputs, const CompileStage& compile) {
  LoweredStage stage;
  lay_out(part.graph, part.in, stage.in, stage.in_gradient);
  lay_out(part.graph, part.out, stage.out, stage.out_gradient);
  stage.first_layer = reader_of(part.graph, part.in);
  stage.last_layer = maker_of(part.graph, part.out);
  passes::PipelinePrograms programs = passes::split_part(part, splits_weights);
  lay_out_results(programs.forward, "kept.", stage.kept);
  lay_out_results(programs.backward, "late.", stage.late);
  const auto compiled = [&](ir::Graph& graph) {
    StageProgram made;
    made.graph = std::move(graph);
    made.program = compile(made.graph);
    for (const std::string& name : made.program->input_names) {
      StageSlot slot = stage.slot(name);
      const auto at = std::find(inputs.begin(), inputs.end(), name);
      if (at != inputs.end()) slot.feed = static_cast<size_t>(at - inputs.begin());
      made.in.push_back(slot);
    }
    for (const std::string& name : made.program->output_names) made.out.push_back(stage.slot(name));
    return made;
  };
  stage.forward = compiled(programs.forward);
  stage.backward = compiled(programs.backward);
  if (splits_weights) stage.weights = compiled(programs.weights);
  return stage;
}

}  // namespace trireme::lower
