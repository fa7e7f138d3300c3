// Runs a graph for any input shapes: one program per shape, nodes with data-dependent shapes in between.
#include "engine/graph_runner.h"

#include <algorithm>
#include <unordered_map>

#include "engine/control.h"
#include "engine/segments.h"
#include "ops/table.h"

namespace trireme::engine {

using tensor::Dims;
using tensor::Tensor;

void* Arena::reserve(int64_t bytes) {
  if (bytes > bytes_ || memory_ == nullptr) {
    memory_.reset();
    memory_ = device_.allocate(bytes);
    bytes_ = bytes;
  }
  return memory_.get();
}

struct CompiledShape {
  std::vector<Dims> shapes;  ///< of the inputs: the key
  ir::Graph bound;
  Segments segments;
  std::unique_ptr<runtime::Executor> executor;
  void* arena = nullptr;  ///< what the executor was bound to last
  std::unique_ptr<GraphRunner> rest;
  SubgraphCache subgraphs;  ///< runners of branches and loop bodies
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  uint64_t last_used = 0;
};

GraphRunner::GraphRunner(ir::Graph graph, RunnerContext& context)
    : graph_(std::move(graph)), context_(context) {}
GraphRunner::~GraphRunner() = default;

void GraphRunner::check_types(const std::vector<Tensor>& inputs) const {
  base::require(inputs.size() == graph_.inputs().size(), "the model takes ", graph_.inputs().size(),
                " inputs, got ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ir::Value& v = graph_.value(graph_.inputs()[i]);
    base::require(inputs[i].defined(), "input '", v.name, "' is missing");
    base::require(inputs[i].dtype() == v.type.dtype, "input '", v.name, "' has type ",
                  tensor::name_of(inputs[i].dtype()), ", the model takes ", tensor::name_of(v.type.dtype));
  }
}

CompiledShape& GraphRunner::compiled_for(const std::vector<Tensor>& inputs) {
  const auto same = [&](const CompiledShape& c) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dims() != c.shapes[i]) return false;
    }
    return c.shapes.size() == inputs.size();
  };
  if (last_ != nullptr && same(*last_)) return *last_;
  std::vector<Dims> shapes;
  for (const Tensor& t : inputs) shapes.push_back(t.dims());
  return compiled_for(std::move(shapes));
}

CompiledShape& GraphRunner::compiled_for(std::vector<Dims> shapes) {
  auto at = compiled_.find(shapes);
  if (at == compiled_.end()) {
    std::unique_ptr<CompiledShape> made = compile_shape(shapes);
    if (!compiled_.empty() && compiled_.size() >= context_.max_programs) {
      const auto oldest = std::min_element(
          compiled_.begin(), compiled_.end(),
          [](const auto& a, const auto& b) { return a.second->last_used < b.second->last_used; });
      if (last_ == oldest->second.get()) last_ = nullptr;
      compiled_.erase(oldest);
    }
    at = compiled_.emplace(std::move(shapes), std::move(made)).first;
  }
  at->second->last_used = ++clock_;
  last_ = at->second.get();
  return *last_;
}

std::unique_ptr<CompiledShape> GraphRunner::compile_shape(const std::vector<Dims>& shapes) {
  auto made = std::make_unique<CompiledShape>();
  made->shapes = shapes;
  made->bound = passes::bind_shapes(graph_, shapes);
  made->segments = cut_segments(made->bound);
  ir::Graph& ready = made->segments.ready;
  passes::run_passes(passes::bucket_passes(), ready, context_.passes);
  auto program =
      std::make_shared<compile::Program>(compile::compile(ready, context_.compile, context_.packs));
  made->executor = std::make_unique<runtime::Executor>(std::move(program));
  made->in_pointers.resize(shapes.size());
  made->out_pointers.resize(made->executor->program().outputs.size());
  if (!made->segments.complete) {
    made->rest = std::make_unique<GraphRunner>(std::move(made->segments.rest), context_);
  }
  return made;
}

void GraphRunner::launch(CompiledShape& shape, const std::vector<Tensor>& inputs,
                         std::vector<Tensor>& outputs, runtime::Trace* trace) {
  void* arena = context_.arena.reserve(shape.executor->program().memory.arena_bytes);
  if (arena != shape.arena) {
    shape.executor->bind_arena(arena);
    shape.arena = arena;
  }
  for (size_t i = 0; i < inputs.size(); ++i) shape.in_pointers[i] = inputs[i].raw();
  for (size_t i = 0; i < outputs.size(); ++i) shape.out_pointers[i] = outputs[i].mutable_raw();
  shape.executor->run(shape.in_pointers, shape.out_pointers, context_.stream, trace);
}

std::vector<Tensor> GraphRunner::run(const std::vector<Tensor>& inputs, runtime::Trace* trace) {
  check_types(inputs);
  CompiledShape& shape = compiled_for(inputs);
  const compile::Program& program = shape.executor->program();
  std::vector<Tensor> outputs;
  for (compile::SlotId id : program.outputs) {
    outputs.push_back(Tensor::empty(program.slot(id).dtype, program.slot(id).dims));
  }
  launch(shape, inputs, outputs, trace);
  return shape.segments.complete ? outputs : finish(shape, inputs, std::move(outputs));
}

void GraphRunner::run_into(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs,
                           runtime::Trace* trace) {
  check_types(inputs);
  CompiledShape& shape = compiled_for(inputs);
  if (!shape.segments.complete) {
    base::fail_unsupported("result shapes depend on data, so results cannot be written into given memory");
  }
  const compile::Program& program = shape.executor->program();
  base::require(outputs.size() == program.outputs.size(), "the model has ", program.outputs.size(),
                " outputs, got room for ", outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const compile::Slot& slot = program.slot(program.outputs[i]);
    if (outputs[i].dtype() == slot.dtype && outputs[i].dims() == slot.dims) continue;
    // Not require(): its message would be built, and allocate, on every run.
    base::fail_invalid("output '", program.output_names[i], "' has type ", tensor::name_of(slot.dtype),
                       tensor::to_string(slot.dims), ", the given memory is ", outputs[i].type().to_string());
  }
  launch(shape, inputs, outputs, trace);
}

std::vector<Tensor> GraphRunner::run_node(CompiledShape& shape, const ir::Node& node,
                                          std::vector<Tensor> in) {
  try {
    if (node.op->schema.is_control) return run_control(node, in, shape.subgraphs, context_);
    return ops::evaluate(*node.op, node.attrs, in, node.out.size(), context_.pool);
  } catch (const base::Error& e) {
    throw e.with(base::concat("node '", node.from, "' (", node.op_name(), ")"));
  }
}

std::vector<Tensor> GraphRunner::finish(CompiledShape& shape, const std::vector<Tensor>& inputs,
                                        std::vector<Tensor> computed) {
  const ir::Graph& bound = shape.bound;
  std::unordered_map<ir::ValueId, Tensor> available;
  for (size_t i = 0; i < inputs.size(); ++i) available[bound.inputs()[i]] = inputs[i];
  for (size_t i = 0; i < computed.size(); ++i)
    available[shape.segments.ready_outputs[i]] = std::move(computed[i]);
  const auto fetch = [&](ir::ValueId id) -> Tensor {
    if (id == ir::kNoValue) return {};
    return bound.value(id).data.defined() ? bound.value(id).data : available.at(id);
  };
  for (ir::NodeId id : shape.segments.frontier) {
    const ir::Node& node = bound.node(id);
    std::vector<Tensor> in;
    for (ir::ValueId v : node.in) in.push_back(fetch(v));
    std::vector<Tensor> out = run_node(shape, node, std::move(in));
    base::require(out.size() >= node.out.size(), "node '", node.from, "' (", node.op_name(), ") yields ",
                  out.size(), " results, ", node.out.size(), " are read");
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) available[node.out[i]] = std::move(out[i]);
    }
  }
  std::vector<Tensor> rest_inputs;
  for (ir::ValueId id : shape.segments.rest_inputs) rest_inputs.push_back(available.at(id));
  return shape.rest->run(rest_inputs);
}

const compile::Program& GraphRunner::program_for(const std::vector<Dims>& shapes) {
  return compiled_for(shapes).executor->program();
}

bool GraphRunner::is_static(const std::vector<Dims>& shapes) {
  return compiled_for(shapes).segments.complete;
}

}  // namespace trireme::engine
