// Control flow: `if` runs one branch; `loop` and `scan` become calls of their bodies' runners.
#include "engine/session/control.h"

#include <cstring>

#include "engine/session/graph_runner.h"
#include "engine/session/loop_runner.h"
#include "passes/lists/lists.h"

namespace trireme::engine {
namespace {

using tensor::Dims;
using tensor::Tensor;

ir::Graph prepared_subgraph(const ir::Graph& graph, RunnerContext& context) {
  ir::Graph prepared = graph;
  passes::run_passes(passes::prepare_passes(), prepared, context.passes);
  return prepared;
}

std::vector<Tensor> captured(const ir::Node& node, const std::vector<Tensor>& in) {
  const int64_t count = node.attrs.get_int("captures", 0);
  base::check(count >= 0 && count <= static_cast<int64_t>(in.size()), "captures out of range");
  return {in.end() - count, in.end()};
}

/// A scanned operand with the axis that is scanned as its outermost.
Tensor with_axis_first(const Tensor& t, size_t axis) {
  if (tensor::bits_of(t.dtype()) < 8)
    base::fail_unsupported("a scan over ", name_of(t.dtype()), ", of which several elements share a byte");
  if (axis == 0) return t;
  Dims dims = t.dims();
  const int64_t length = dims[axis];
  const auto at = dims.begin() + static_cast<int64_t>(axis);
  const int64_t outer = tensor::element_count(Dims(dims.begin(), at));
  dims.erase(at);
  dims.insert(dims.begin(), length);
  Tensor out = Tensor::empty(t.dtype(), dims);
  const int64_t run = outer == 0 || length == 0 ? 0 : t.bytes() / (outer * length);  // bytes side by side
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t o = 0; o < outer; ++o)
      std::memcpy(out.mutable_raw() + (i * outer + o) * run, t.raw() + (o * length + i) * run,
                  static_cast<size_t>(run));
  }
  return out;
}

bool truth(const Tensor& t) {
  base::require(t.defined() && t.elements() == 1, "a condition must have one element");
  return t.to_ints()[0] != 0;
}

std::vector<Tensor> run_if(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                           RunnerContext& context) {
  const ir::GraphPtr branch = node.attrs.get_graph(truth(in[0]) ? "then_branch" : "else_branch");
  std::unique_ptr<GraphRunner>& slot = cache.branches[branch.get()];
  if (slot == nullptr) slot = std::make_unique<GraphRunner>(prepared_subgraph(*branch, context), context);
  return slot->run(captured(node, in));
}

LoopRunner& loop_runner(const ir::GraphPtr& body, const lower::LoopSignature& signature, SubgraphCache& cache,
                        RunnerContext& context) {
  std::unique_ptr<LoopRunner>& slot = cache.loops[body.get()];
  if (slot == nullptr)
    slot = std::make_unique<LoopRunner>(prepared_subgraph(*body, context), signature, context);
  return *slot;
}

std::vector<Tensor> run_loop(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                             RunnerContext& context) {
  const ir::GraphPtr body = node.attrs.get_graph("body");
  base::require(!in[0].defined() || in[0].elements() == 1, "loop: the trip count must be one number");
  const size_t states = in.size() - 2 - captured(node, in).size();
  base::require(body->outputs().size() >= states + 1, "the loop body yields too few values");
  LoopCall call{.operands = in, .trips = in[0].defined() ? in[0].to_ints()[0] : INT64_MAX};
  if (in[1].defined() && !truth(in[1])) call.trips = 0;
  call.operands[0] = call.operands[1] = {};  // the body's are the iteration number and its condition
  call.stacked.resize(body->outputs().size() - 1 - states);
  return loop_runner(body, {.states = states}, cache, context).run(std::move(call));
}

int64_t at_or(const std::vector<int64_t>& list, size_t i, int64_t fallback) {
  return i < list.size() ? list[i] : fallback;
}

std::vector<Tensor> run_scan(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                             RunnerContext& context) {
  const ir::GraphPtr body = node.attrs.get_graph("body");
  lower::LoopSignature signature{.is_scan = true};
  signature.slices = static_cast<size_t>(node.attrs.need_int("num_scan_inputs"));  // checked by the type rule
  signature.states = in.size() - captured(node, in).size() - signature.slices;
  base::require(body->outputs().size() >= signature.states, "the scan body yields too few values");
  const std::vector<int64_t> in_axes = node.attrs.get_ints("scan_input_axes");
  const std::vector<int64_t> in_reversed = node.attrs.get_ints("scan_input_directions");
  LoopCall call{.operands = in};
  for (size_t s = 0; s < signature.slices; ++s) {
    Tensor& operand = call.operands[signature.first_slice() + s];
    operand = with_axis_first(operand, ir::normal_axis(at_or(in_axes, s, 0), operand.rank()));
    signature.from_last.push_back(at_or(in_reversed, s, 0) != 0);
    base::require(s == 0 || operand.dims()[0] == call.trips, "scan inputs differ in length");
    call.trips = operand.dims()[0];
  }
  const std::vector<int64_t> out_axes = node.attrs.get_ints("scan_output_axes");
  const std::vector<int64_t> out_reversed = node.attrs.get_ints("scan_output_directions");
  for (size_t i = 0; i + signature.states < body->outputs().size(); ++i)
    call.stacked.push_back({.axis = at_or(out_axes, i, 0), .from_last = at_or(out_reversed, i, 0) != 0});
  return loop_runner(body, signature, cache, context).run(std::move(call));
}

}  // namespace

SubgraphCache::SubgraphCache() = default;
SubgraphCache::~SubgraphCache() = default;

int64_t SubgraphCache::folded_bytes() const {
  int64_t bytes = 0;
  for (const auto& [graph, runner] : branches) bytes += runner->folded_bytes();
  for (const auto& [graph, runner] : loops) bytes += runner->folded_bytes();
  return bytes;
}

std::vector<Tensor> run_control(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                                RunnerContext& context) {
  if (node.op_name() == "if") return run_if(node, in, cache, context);
  if (node.op_name() == "loop") return run_loop(node, in, cache, context);
  if (node.op_name() == "scan") return run_scan(node, in, cache, context);
  base::fail_unsupported("control operator '", node.op_name(), "'");
}

}  // namespace trireme::engine
