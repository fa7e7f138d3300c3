// Training steps of a pipeline stage: its programs, its run over the micro-batches, what stages share.
#include <algorithm>
#include <cstring>

#include "comm/mesh.h"
#include "engine/pipeline.h"
#include "engine/state_parts.h"
#include "engine/step_program.h"

namespace trireme::engine {

using passes::PipelineAction;
using passes::PipelineWork;
using tensor::Dims;
using tensor::Tensor;

namespace {

/// Named values one after another in a buffer.
struct Layout {
  std::map<std::string, int64_t, std::less<>> at;
  int64_t bytes = 0;

  void add(const std::string& name, const tensor::TensorType& type) {
    constexpr int64_t kAlign = 64;
    at[name] = bytes;
    bytes += (tensor::bytes_of(type) + kAlign - 1) / kAlign * kAlign;
  }
};

const tensor::TensorType* type_of(const ir::Graph& graph, const std::string& name) {
  for (ir::ValueId id : graph.inputs()) {
    if (graph.value(id).name == name) return &graph.type(id);
  }
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? nullptr : &graph.type(graph.outputs()[static_cast<size_t>(at - names.begin())]);
}

/// Crossing values and, where they have one, their gradients.
void lay_out(const ir::Graph& graph, const std::vector<std::string>& names, Layout& values,
             Layout& gradients) {
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

/// Results that one program hands to others.
void lay_out_results(const ir::Graph& graph, std::string_view prefix, Layout& values) {
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const std::string& name = graph.output_names()[i];
    if (name.starts_with(prefix)) values.add(name, graph.type(graph.outputs()[i]));
  }
}

/// Where a program finds an operand or leaves a result.
struct Place {
  std::byte* PipelineBuffers::*buffer = nullptr;  ///< null: a scalar or a feed
  int64_t offset = 0;
  size_t feed = 0;
};

}  // namespace

/// The programs of one sequence of micro-batches on this stage.
struct TrainSession::Pipeline {
  struct Program {
    std::unique_ptr<StepProgram> step;
    std::vector<Place> in, out;
  };
  struct Chunk {
    Program forward, backward, weights;
    std::string first_layer, last_layer;  ///< that read what arrives, that compute what leaves
    Layout in, out, in_gradient, out_gradient, kept, late;

    Place place(const std::string& name) const {
      using B = PipelineBuffers;
      for (const auto& [layout, buffer] :
           {std::pair(&in, &B::in), std::pair(&out, &B::out), std::pair(&in_gradient, &B::in_gradient),
            std::pair(&out_gradient, &B::out_gradient), std::pair(&kept, &B::kept),
            std::pair(&late, &B::late)}) {
        if (const auto at = layout->at.find(name); at != layout->at.end()) return {buffer, at->second};
      }
      return {};
    }
    /// What activations take: the largest program, and buffers for the micro-batches in flight.
    int64_t peak_bytes(const passes::PipelineSlots& slots) const {
      int64_t arena = 0;
      for (const Program* p : {&forward, &backward, &weights}) {
        if (p->step != nullptr) arena = std::max(arena, p->step->program->memory.arena_bytes);
      }
      return arena + in.bytes * slots.in + out.bytes * slots.out + in_gradient.bytes * slots.in_gradient +
             out_gradient.bytes * slots.out_gradient + kept.bytes * slots.kept + late.bytes * slots.late;
    }
    Program& program(PipelineWork work) {
      return work == PipelineWork::forward           ? forward
             : work == PipelineWork::weight_gradient ? weights
                                                     : backward;
    }
  };
  std::vector<Chunk> chunks;
  std::unique_ptr<PipelineRunner> runner;
  StepProgram* tied = nullptr;  ///< null: no other stage has a parameter of this one
  StepProgram* update = nullptr;
};

void TrainSession::PipelineDelete::operator()(Pipeline* pipeline) const { delete pipeline; }

int TrainSession::stages() const {
  return options_.mesh == nullptr ? 1 : options_.mesh->shape().extent("pp");
}

/// With a budget, what is computed again is the least for which this part's programs and buffers fit its
/// share.
void TrainSession::add_chunk(Pipeline& pipeline, const StepKey& key, const passes::PipelineSlots& slots) {
  StageGraph stage = graphs_->make_stage(key, params_);
  forget_other_stages();
  settle_states(stage.step);
  if (!stage.step.precision_text.empty()) precision_text_ = stage.step.precision_text;
  ir::Graph& graph = stage.step.graph;
  fuse(graph);
  std::vector<passes::RecomputePlan> plans;
  if (options_.activation_bytes > 0) {
    plans = recompute_plans(graph);
  } else {
    plans.push_back(passes::plan_recompute(graph, options_.recompute));
    share_plans(plans, graph.nodes().size());
  }
  int64_t least = INT64_MAX;
  for (const passes::RecomputePlan& plan : plans) {
    passes::PipelinePart part{graph, stage.in, stage.out};
    passes::recompute(part.graph, plan);
    part.graph.sort();
    compile_chunk(pipeline, key, std::move(part));
    const int64_t bytes = most_of_stage(pipeline.chunks.back().peak_bytes(slots)) * options_.strategy.chunks;
    least = std::min(least, bytes);
    if (options_.activation_bytes == 0 || bytes <= options_.activation_bytes) return;
    pipeline.chunks.pop_back();
  }
  fail_budget(least);
}

void TrainSession::compile_chunk(Pipeline& pipeline, const StepKey& key, passes::PipelinePart part) {
  Pipeline::Chunk chunk;
  lay_out(part.graph, part.in, chunk.in, chunk.in_gradient);
  lay_out(part.graph, part.out, chunk.out, chunk.out_gradient);
  chunk.first_layer = reader_of(part.graph, part.in);
  chunk.last_layer = maker_of(part.graph, part.out);
  const bool splits = options_.strategy.schedule == passes::PipelineSchedule::zero_bubble;
  passes::PipelinePrograms programs = passes::split_part(part, splits);
  lay_out_results(programs.forward, "kept.", chunk.kept);
  lay_out_results(programs.backward, "late.", chunk.late);
  const auto compiled = [&](ir::Graph& graph) {
    Pipeline::Program p;
    p.step = std::make_unique<StepProgram>();
    p.step->key = key;
    p.step->graph = std::move(graph);
    finish(*p.step, [&](const std::string& name) { return chunk.place(name).buffer != nullptr; });
    for (const std::string& name : p.step->program->input_names) {
      Place place = chunk.place(name);
      for (size_t i = 0; i < model_.inputs().size(); ++i) {
        if (model_.value(model_.inputs()[i]).name == name) place.feed = i;
      }
      p.in.push_back(place);
    }
    for (const std::string& name : p.step->program->output_names) p.out.push_back(chunk.place(name));
    return p;
  };
  chunk.forward = compiled(programs.forward);
  chunk.backward = compiled(programs.backward);
  if (splits) chunk.weights = compiled(programs.weights);
  pipeline.chunks.push_back(std::move(chunk));
}

/// Weights of other stages need no memory here.
void TrainSession::forget_other_stages() {
  const auto is_mine = [&](const std::string& name) {
    const auto held = graphs_->holders().find(name);
    if (held == graphs_->holders().end()) return true;
    return std::find(held->second.begin(), held->second.end(), graphs_->stage()) != held->second.end();
  };
  for (size_t i = 0; i < model_.values().size(); ++i) {
    ir::Value& v = model_.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || !states_.has(v.name) || is_mine(v.name)) continue;
    v.data = Tensor();
    states_.erase(v.name);
  }
}

std::unique_ptr<TrainSession::Pipeline, TrainSession::PipelineDelete> TrainSession::build_pipeline(
    const StepKey& key) {
  const passes::Strategy& strategy = options_.strategy;
  if (links_ == nullptr)
    links_ = std::make_shared<PipelineLinks>(options_.mesh->axis("pp"), strategy.chunks > 1, on_.device,
                                             on_.ranks.get());
  std::unique_ptr<Pipeline, PipelineDelete> made(new Pipeline);
  const passes::PipelineOrder order = passes::make_pipeline_order(
      strategy.schedule,
      {.stages = stages(), .micro_batches = static_cast<int>(key.micro_batches), .chunks = strategy.chunks});
  const auto slots = passes::plan_pipeline_slots(order)[static_cast<size_t>(graphs_->stage())];
  std::vector<PipelineBytes> bytes;
  for (size_t c = 0; c < slots.size(); ++c) {
    StepKey stage = key;
    stage.part = StepPart::stage;
    stage.chunk = c;
    add_chunk(*made, stage, slots[c]);
    const Pipeline::Chunk& chunk = made->chunks.back();
    bytes.push_back({.in = chunk.in.bytes,
                     .out = chunk.out.bytes,
                     .out_gradient = chunk.out_gradient.bytes,
                     .in_gradient = chunk.in_gradient.bytes,
                     .kept = chunk.kept.bytes,
                     .late = chunk.late.bytes,
                     .first_layer = chunk.first_layer,
                     .last_layer = chunk.last_layer});
  }
  StepKey tied = key;
  tied.part = StepPart::tied;
  StepProgram& sums = program_for(tied);
  if (!sums.results.empty()) made->tied = &sums;
  made->update = &program_for(key);
  made->runner = std::make_unique<PipelineRunner>(order, std::move(bytes), *links_, *device_);
  return made;
}

TrainSession::Pipeline& TrainSession::pipeline_for(const std::vector<Dims>& shapes, size_t micro_batches) {
  const StepKey key{shapes, micro_batches, StepPart::update};
  auto& found = pipelines_[key];
  if (found == nullptr) found = build_pipeline(key);
  return *found;
}

std::vector<const compile::Program*> TrainSession::pipeline_programs(const std::vector<Dims>& shapes,
                                                                     size_t micro_batches) {
  std::vector<const compile::Program*> list;
  const Pipeline& pipeline = pipeline_for(shapes, micro_batches);
  for (const Pipeline::Chunk& chunk : pipeline.chunks) {
    for (const Pipeline::Program* p : {&chunk.forward, &chunk.backward, &chunk.weights}) {
      if (p->step != nullptr) list.push_back(p->step->program.get());
    }
  }
  list.push_back(pipeline.update->program.get());
  return list;
}

std::string TrainSession::pipeline_text(const std::vector<Dims>& shapes, size_t micro_batches) {
  if (stages() == 1) return "";
  const Pipeline& pipeline = pipeline_for(shapes, micro_batches);
  return passes::to_text(graphs_->pipeline_cut(), pipeline.runner->order());
}

int64_t TrainSession::pipeline_bytes(const std::vector<Dims>& shapes, size_t micro_batches) {
  return stages() == 1 ? 0 : pipeline_for(shapes, micro_batches).runner->buffer_bytes();
}

const runtime::Trace& TrainSession::pipeline_trace(const std::vector<Dims>& shapes, size_t micro_batches) {
  return pipeline_for(shapes, micro_batches).chunks[0].forward.step->trace;
}

/// Adds `mine` over the stages that hold it: the first of them adds the others' in the order of the stages,
/// and all get its sum. (Two stages at once: a + b is b + a.)
void TrainSession::add_over_stages(Tensor& mine, const std::vector<int>& holders) {
  comm::Communicator& pp = options_.mesh->axis("pp");
  constexpr const char* kSource = "tied weight";
  Tensor other = Tensor::empty(mine.dtype(), mine.dims());
  const auto bytes = [](Tensor& t) { return std::span(t.mutable_raw(), static_cast<size_t>(t.bytes())); };
  const auto add = [&] {
    const auto sum = mine.mutable_data<float>();
    const auto more = other.data<float>();
    constexpr int64_t kGrain = 1 << 14;
    pool_.for_range(mine.elements(), kGrain, [&](int64_t begin, int64_t end) {
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

/// Gradients of parameters that several stages hold: every stage gets the sum of all.
void TrainSession::add_tied(StepProgram& sums, const StepInputs& inputs) {
  launch(sums, {}, inputs, 0);
  for (size_t i = 0; i < sums.results.size(); ++i) {
    const std::string& name = sums.graph.output_names()[i];
    const std::string param = name.substr(0, name.size() - tied_sum("").size());
    add_over_stages(sums.results[i], graphs_->holders().at(param));
    scratch_.set(name, sums.results[i]);
  }
}

StepResult TrainSession::pipeline_step(std::span<const Feeds> micro_batches, const StepInputs& inputs) {
  const size_t count = micro_batches.size();
  const std::vector<Dims> shapes = shapes_of(micro_batches[0]);
  for (const Feeds& feeds : micro_batches)
    base::require(shapes_of(feeds) == shapes, "the micro-batches of a pipeline's step have one shape");
  Pipeline& pipeline = pipeline_for(shapes, count);
  // Nothing but partial sums changes in here: if a stage fails, no weight has moved on any.
  const PipelineReport report =
      pipeline.runner->run([&](const PipelineAction& a, const PipelineBuffers& buffers) {
        Pipeline::Program& p = pipeline.chunks[static_cast<size_t>(a.chunk)].program(a.work);
        const auto m = static_cast<size_t>(a.micro_batch);
        use_arena(*p.step);
        const StepScalars scalars = scalars_of(inputs, micro_batches[m], m, count);
        p.step->in.clear();
        p.step->out.clear();
        for (size_t i = 0; i < p.in.size(); ++i) {
          const Place& place = p.in[i];
          const void* scalar = scalars.find(p.step->program->input_names[i]);
          p.step->in.push_back(scalar != nullptr         ? scalar
                               : place.buffer == nullptr ? micro_batches[m].at(place.feed).raw()
                                                         : buffers.*place.buffer + place.offset);
        }
        for (const Place& place : p.out) p.step->out.push_back(buffers.*place.buffer + place.offset);
        run_bound(*p.step);
      });
  if (pipeline.tied != nullptr) add_tied(*pipeline.tied, inputs);
  launch(*pipeline.update, {}, inputs, 0);
  StepResult result;
  read_results(*pipeline.update, result);
  result.bubble = report.bubble;
  result.expected_bubble = report.predicted;
  constexpr double kNs = 1e9;
  for (size_t c = 0; c < pipeline.chunks.size(); ++c) {
    const auto part = c * static_cast<size_t>(stages()) + static_cast<size_t>(graphs_->stage());
    const passes::PipelineTimes::Part& times = report.times.parts[part];
    const double n = static_cast<double>(count) * kNs;
    result.forward_ns += static_cast<int64_t>(n * times.forward);
    result.backward_ns +=
        static_cast<int64_t>(n * (times.backward + times.input_gradient + times.weight_gradient));
  }
  return result;
}

/// Params of other stages come from the first stage that holds them.
void TrainSession::share_weights(ir::Graph& graph) const {
  comm::Communicator& pp = options_.mesh->axis("pp");
  for (size_t i = 0; i < graph.values().size(); ++i) {
    ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
    const auto held = graphs_->holders().find(v.name);
    if (v.kind != ir::ValueKind::param || held == graphs_->holders().end()) continue;
    if (static_cast<int>(held->second.size()) == stages()) continue;
    const bool is_mine = states_.has(v.name);
    if (v.type.dtype != tensor::DType::f32 || (!is_mine && v.data.defined())) continue;
    // A second holder of a tied weight gets the bytes it has.
    if (!is_mine) v.data = Tensor::empty(v.type.dtype, v.type.shape.to_dims());
    pp.broadcast({v.data.mutable_raw(), static_cast<size_t>(v.data.bytes())}, held->second.front(), v.name);
  }
}

}  // namespace trireme::engine
