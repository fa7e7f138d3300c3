// Runs a graph for any input shapes: compiles one program per shape, and runs nodes with data-dependent
// shapes between programs.
#include "engine/session/graph_runner.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <unordered_map>
#include <unordered_set>

#include "base/threads/pause_point.h"
#include "lower/batch_proof.h"
#include "lower/batch_slices.h"
#include "engine/session/control.h"
#include "lower/segments.h"
#include "ops/table.h"
#include "passes/lists/lists.h"

namespace trireme::engine {

using tensor::Dims;
using tensor::Tensor;

/// An executor and the addresses of its next slice. Lanes run slices of one batch concurrently.
struct Lane {
  std::unique_ptr<runtime::Executor> executor;
  std::vector<const void*> in;
  std::vector<void*> out;
  std::exception_ptr failure;
};

struct CompiledShape {
  std::vector<Dims> shapes;  ///< of the inputs; the key
  ir::Graph bound;
  lower::Segments segments;
  std::shared_ptr<const compile::Program> compiled;
  int64_t slices = 1;           ///< the program covers rows / slices rows of the batch
  std::vector<Lane> lanes;      ///< at least one; none if programs are only planned
  std::vector<const void*> in;  ///< addresses of a run's tensors
  std::vector<void*> out;
  void* arena = nullptr;                           ///< the memory that executors were last bound to
  std::vector<std::unique_ptr<GraphRunner>> rest;  ///< of each later part
  SubgraphCache subgraphs;                         ///< runners of branches and loop bodies
  int64_t folded_bytes = 0;                        ///< of constants computed for these shapes

  const compile::Program& program() const { return *compiled; }
  /// Extents of result i over all slices, and a comparison with `dims`.
  Dims out_dims(size_t i) const {
    Dims dims = program().slot(program().outputs[i]).dims;
    if (slices > 1) dims[0] *= slices;
    return dims;
  }
  bool has_out_dims(size_t i, const Dims& dims) const {
    const Dims& one = program().slot(program().outputs[i]).dims;
    if (slices == 1) return dims == one;
    return dims.size() == one.size() && dims[0] == one[0] * slices &&
           std::equal(dims.begin() + 1, dims.end(), one.begin() + 1);
  }
};

GraphRunner::GraphRunner(ir::Graph graph, RunnerContext& context, size_t max_programs)
    : graph_(std::move(graph)),
      context_(context),
      serial_stream_(context.device.open_stream(serial_pool_)),
      compiled_(max_programs > 0 ? max_programs : context.max_programs) {}
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

namespace {

/// The same shapes with another number of rows.
std::vector<Dims> with_rows(std::vector<Dims> shapes, int64_t rows) {
  for (Dims& dims : shapes) dims[0] = rows;
  return shapes;
}

}  // namespace

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
  return compiled_for(shapes);
}

CompiledShape& GraphRunner::compiled_for(const std::vector<Dims>& shapes) {
  last_ = nullptr;  // it may be erased
  last_ = &compiled_.find(shapes, [&] { return compile_shape(shapes); });
  return *last_;
}

lower::LoweredInference GraphRunner::compile_ready(ir::Graph& ready, int threads) {
  lower::InferenceTarget target{context_.compile, context_.passes, context_.strategy};
  target.compile.threads = threads;
  return lower::lower_inference(std::move(ready), target, context_.packs, graph_);
}

/// The proof does not depend on the number of rows, so it is made once for all numbers.
bool GraphRunner::keeps_rows_apart(const std::vector<Dims>& shapes) {
  const bool have_rows = std::all_of(shapes.begin(), shapes.end(), [&](const Dims& dims) {
    return !dims.empty() && dims[0] == shapes[0][0];
  });
  if (!have_rows) return false;
  if (rows_apart_.size() > 4 * context_.max_programs) rows_apart_.clear();  // shapes come from requests
  const auto [at, is_new] = rows_apart_.emplace(with_rows(shapes, 1), false);
  if (is_new) at->second = lower::rows_are_independent(graph_, shapes);
  return at->second;
}

/// `one_row`: receives the plan for one row, if there is one, without packed weights; while it lives, other
/// plans share the weights that it rounded.
lower::SlicePlan GraphRunner::slice_plan(const CompiledShape& shape,
                                         std::shared_ptr<const compile::Program>& one_row) {
  const int64_t rows = shape.shapes.empty() || shape.shapes[0].empty() ? 1 : shape.shapes[0][0];
  if (rows < 2 || !shape.segments.complete || context_.compile.on != tensor::DeviceKind::cpu) return {};
  // Rows of types narrower than a byte may start within a byte.
  const auto has_whole_bytes = [&](ir::ValueId id) {
    const tensor::DType type = graph_.type(id).dtype;
    return tensor::bytes_of(type, 2) == 2 * tensor::bytes_of(type, 1);
  };
  if (!std::all_of(graph_.inputs().begin(), graph_.inputs().end(), has_whole_bytes)) return {};
  if (!std::all_of(graph_.outputs().begin(), graph_.outputs().end(), has_whole_bytes)) return {};
  if (!keeps_rows_apart(shape.shapes)) return {};
  lower::Segments one;
  try {
    one = lower::cut_segments(passes::bind_shapes(graph_, with_rows(shape.shapes, 1)));
  } catch (const base::Error&) {
    return {};  // a constant of the model fits only this number of rows
  }
  if (!one.complete) return {};
  one_row = compile_ready(one.ready, 1).program;
  return lower::plan_slices(*one_row, rows, context_.pool.size());
}

std::unique_ptr<CompiledShape> GraphRunner::compile_shape(const std::vector<Dims>& shapes) {
  auto made = std::make_unique<CompiledShape>();
  made->shapes = shapes;
  made->bound = passes::bind_shapes(graph_, shapes);
  made->segments = lower::cut_segments(made->bound);
  std::shared_ptr<const compile::Program> one_row;
  const lower::SlicePlan plan = slice_plan(*made, one_row);
  if (plan.slices > 1) {
    made->slices = plan.slices;
    made->bound = passes::bind_shapes(graph_, with_rows(shapes, shapes[0][0] / plan.slices));
    made->segments = lower::cut_segments(made->bound);
  }
  const int threads = plan.lanes > 1 ? 1 : context_.compile.threads;
  const lower::LoweredInference lowered = compile_ready(made->segments.ready, threads);
  // A session that only plans packs no weights.
  made->compiled = context_.plan_only
                       ? lowered.program
                       : lower::bind_weights(lowered.program, {context_.packs, &context_.pool});
  made->folded_bytes = lowered.folded_bytes;
  ++context_.compiles;
  made->lanes.resize(context_.plan_only ? 0 : static_cast<size_t>(plan.lanes));
  for (Lane& lane : made->lanes) {
    lane.executor =
        std::make_unique<runtime::Executor>(made->compiled, std::vector<void*>(), nullptr, context_.on);
    lane.in.resize(shapes.size());
    lane.out.resize(made->compiled->outputs.size());
  }
  made->in.resize(shapes.size());
  made->out.resize(made->compiled->outputs.size());
  for (lower::LaterPart& part : made->segments.rest)
    made->rest.push_back(std::make_unique<GraphRunner>(std::move(part.graph), context_));
  return made;
}

void GraphRunner::bind_arena(CompiledShape& shape) {
  if (shape.lanes.empty()) base::fail_unsupported("this session plans programs and runs none");
  const int64_t stride = (shape.lanes[0].executor->arena_bytes() + 63) / 64 * 64;
  void* arena = context_.arena.reserve(stride * static_cast<int64_t>(shape.lanes.size()));
  if (arena == shape.arena) return;
  for (size_t i = 0; i < shape.lanes.size(); ++i) {
    shape.lanes[i].executor->bind_arena(static_cast<std::byte*>(arena) + static_cast<int64_t>(i) * stride);
  }
  shape.arena = arena;
}

void GraphRunner::launch(CompiledShape& shape, const std::vector<Tensor>& inputs,
                         std::vector<Tensor>& outputs, runtime::Trace* trace) {
  for (size_t i = 0; i < inputs.size(); ++i) shape.in[i] = inputs[i].raw();
  for (size_t i = 0; i < outputs.size(); ++i) shape.out[i] = outputs[i].mutable_raw();
  launch_at(shape, shape.in, shape.out, trace);
}

void GraphRunner::launch_at(CompiledShape& shape, std::span<const void* const> inputs,
                            std::span<void* const> outputs, runtime::Trace* trace) {
  bind_arena(shape);
  const compile::Program& program = shape.program();
  const auto run_slice = [&](Lane& lane, int64_t slice, tensor::Stream& stream, runtime::Trace* times) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      lane.in[i] = static_cast<const std::byte*>(inputs[i]) + program.slot(program.inputs[i]).bytes * slice;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      lane.out[i] = static_cast<std::byte*>(outputs[i]) + program.slot(program.outputs[i]).bytes * slice;
    }
    lane.executor->run(lane.in, lane.out, stream, times);
  };
  if (shape.lanes.size() == 1) {
    for (int64_t slice = 0; slice < shape.slices; ++slice)
      run_slice(shape.lanes[0], slice, context_.stream, trace);
    return;
  }
  // Lanes take slices until none is left; results do not depend on which lane runs a slice.
  std::atomic<int64_t> next{0};
  std::atomic<int> at_work{0};
  base::PausePoint* const pause = base::PausePoint::of_this_thread();
  context_.pool.run(static_cast<int64_t>(shape.lanes.size()), [&](int64_t index) {
    Lane& lane = shape.lanes[static_cast<size_t>(index)];
    const base::PausePoint::Scope here(pause);
    at_work.fetch_add(1);
    try {
      for (int64_t slice; (slice = next.fetch_add(1)) < shape.slices;) {
        run_slice(lane, slice, *serial_stream_, slice == 0 ? trace : nullptr);
      }
    } catch (...) {
      lane.failure = std::current_exception();
    }
    at_work.fetch_sub(1);
    if (pause == nullptr) return;
    // The pool spins while it waits for its members, so lanes that may be paused wait here, asleep.
    at_work.notify_all();
    for (int others; (others = at_work.load()) > 0;) at_work.wait(others);
  });
  for (Lane& lane : shape.lanes) {
    if (lane.failure) std::rethrow_exception(std::exchange(lane.failure, nullptr));
  }
}

void GraphRunner::check_stop() const {
  if (context_.stop != nullptr) context_.stop->check();
}

CompiledShape* GraphRunner::whole(const std::vector<Dims>& shapes) {
  CompiledShape& shape = compiled_for(shapes);
  return shape.segments.complete ? &shape : nullptr;
}

tensor::DType GraphRunner::result_dtype(const CompiledShape& shape, size_t i) {
  return shape.program().slot(shape.program().outputs[i]).dtype;
}

Dims GraphRunner::result_dims(const CompiledShape& shape, size_t i) { return shape.out_dims(i); }

void GraphRunner::run_at(CompiledShape& shape, std::span<const void* const> inputs,
                         std::span<void* const> outputs) {
  check_stop();
  launch_at(shape, inputs, outputs, nullptr);
}

std::vector<Tensor> GraphRunner::run(const std::vector<Tensor>& inputs, runtime::Trace* trace) {
  check_stop();
  check_types(inputs);
  CompiledShape& shape = compiled_for(inputs);
  const compile::Program& program = shape.program();
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    outputs.push_back(Tensor::empty(program.slot(program.outputs[i]).dtype, shape.out_dims(i)));
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
  const compile::Program& program = shape.program();
  base::require(outputs.size() == program.outputs.size(), "the model has ", program.outputs.size(),
                " outputs, got room for ", outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const compile::Slot& slot = program.slot(program.outputs[i]);
    if (outputs[i].dtype() == slot.dtype && shape.has_out_dims(i, outputs[i].dims())) continue;
    // require() would build its message, and so allocate, in every run.
    base::fail_invalid("output '", program.output_names[i], "' has type ", tensor::name_of(slot.dtype),
                       tensor::to_string(shape.out_dims(i)), ", the given memory is ",
                       outputs[i].type().to_string());
  }
  launch(shape, inputs, outputs, trace);
}

std::vector<Tensor> GraphRunner::run_node(CompiledShape& shape, const ir::Node& node,
                                          std::vector<Tensor> in) {
  try {
    if (node.op->schema.is_control) return run_control(node, in, shape.subgraphs, context_);
    return ops::evaluate(*node.op, node.attrs, in, node.out.size(),
                         {context_.pool, context_.compile.memory_bytes});
  } catch (const base::Error& e) {
    throw e.with(base::concat("node '", node.from, "' (", node.op_name(), ")"));
  }
}

namespace {

/// The values of a graph's run so far.
class RunValues {
 public:
  explicit RunValues(const ir::Graph& graph) : graph_(graph) {}

  void put(ir::ValueId id, Tensor value) { values_[id] = std::move(value); }
  /// Results of a program, in memory of their own.
  void put_results(const std::vector<ir::ValueId>& ids, std::vector<Tensor> results) {
    for (size_t i = 0; i < ids.size(); ++i) {
      values_[ids[i]] = std::move(results[i]);
      is_own_.insert(ids[i]);
    }
  }
  /// Results of a node that ran by itself, which may be operands.
  void put_results_of(const ir::Node& node, std::vector<Tensor> results) {
    base::require(results.size() >= node.out.size(), "node '", node.from, "' (", node.op_name(), ") yields ",
                  results.size(), " results, ", node.out.size(), " are read");
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (node.out[i] != ir::kNoValue) put(node.out[i], std::move(results[i]));
    }
  }
  Tensor get(ir::ValueId id) const {
    if (id == ir::kNoValue) return {};
    return graph_.value(id).data.defined() ? graph_.value(id).data : values_.at(id);
  }
  /// For the caller: no memory that inputs, constants or another result may lie in.
  Tensor take(ir::ValueId id) { return is_own_.erase(id) > 0 ? get(id) : get(id).clone(); }

 private:
  const ir::Graph& graph_;
  std::unordered_map<ir::ValueId, Tensor> values_;
  std::unordered_set<ir::ValueId> is_own_;  ///< not yet taken
};

}  // namespace

std::vector<Tensor> GraphRunner::finish(CompiledShape& shape, const std::vector<Tensor>& inputs,
                                        std::vector<Tensor> computed) {
  const ir::Graph& bound = shape.bound;
  RunValues values(bound);
  for (size_t i = 0; i < inputs.size(); ++i) values.put(bound.inputs()[i], inputs[i]);
  values.put_results(shape.segments.ready_outputs, std::move(computed));
  for (ir::NodeId id : shape.segments.frontier) {
    const ir::Node& node = bound.node(id);
    std::vector<Tensor> in;
    for (ir::ValueId v : node.in) in.push_back(values.get(v));
    values.put_results_of(node, run_node(shape, node, std::move(in)));
  }
  for (size_t p = 0; p < shape.rest.size(); ++p) {
    const lower::LaterPart& part = shape.segments.rest[p];
    std::vector<Tensor> in;
    for (ir::ValueId id : part.inputs) in.push_back(values.get(id));
    values.put_results(part.outputs, shape.rest[p]->run(in));
  }
  std::vector<Tensor> results;
  for (ir::ValueId id : bound.outputs()) results.push_back(values.take(id));
  return results;
}

int64_t GraphRunner::folded_bytes() const {
  int64_t bytes = 0;
  compiled_.for_each([&](const std::vector<Dims>&, const CompiledShape& shape) {
    bytes += shape.folded_bytes;
    for (const auto& part : shape.rest) bytes += part->folded_bytes();
    bytes += shape.subgraphs.folded_bytes();
  });
  return bytes;
}

void GraphRunner::trim(int64_t most_bytes) {
  while (compiled_.size() > 1 && folded_bytes() > most_bytes) {
    last_ = nullptr;
    compiled_.forget_oldest();
  }
}

const compile::Program& GraphRunner::program_for(const std::vector<Dims>& shapes) {
  return compiled_for(shapes).program();
}

int64_t GraphRunner::slices(const std::vector<Dims>& shapes) { return compiled_for(shapes).slices; }

std::string GraphRunner::host_operators() const {
  std::string names;
  compiled_.for_each([&](const std::vector<Dims>&, const CompiledShape& shape) {
    if (names.empty()) names = shape.program().host_operators();
  });
  return names;
}

bool GraphRunner::last_was_static() const { return last_ == nullptr || last_->segments.complete; }

bool GraphRunner::is_static(const std::vector<Dims>& shapes) {
  return compiled_for(shapes).segments.complete;
}

}  // namespace trireme::engine
