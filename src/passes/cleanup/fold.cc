// Constant folding: nodes whose operands are all known are computed at compile time.
#include "passes/cleanup/fold.h"

#include <algorithm>

#include "ops/stored_weights.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

bool may_fold(const ir::Graph& graph, const ir::Node& node) {
  const ir::OpSchema& op = node.op->schema;
  if (op.is_random || op.is_control || op.is_collective || op.updates_state()) return false;
  if (ops::reads_stored_weights(op)) return false;  // weights stay in their stored form
  return std::all_of(node.in.begin(), node.in.end(),
                     [&](ir::ValueId id) { return id == ir::kNoValue || graph.known(id) != nullptr; });
}

int64_t result_bytes(const ir::Graph& graph, const ir::Node& node) {
  int64_t total = 0;
  for (ir::ValueId id : node.out) {
    if (id == ir::kNoValue || !graph.type(id).shape.is_static()) continue;
    const int64_t bytes = tensor::bytes_of(graph.type(id));
    if (bytes > INT64_MAX - total) return INT64_MAX;
    total += bytes;
  }
  return total;
}

int64_t operand_bytes(const ir::Graph& graph, const ir::Node& node) {
  int64_t total = 0;
  for (ir::ValueId id : node.in) {
    if (const tensor::Tensor* t = graph.known(id)) total += t->bytes();
  }
  return total;
}

/// The limits of folding, so that a small file cannot demand any amount of memory or time: results may
/// outgrow their operands by a multiple of the constants in the model, and the work is bounded.
struct Budget {
  int64_t growth_bytes = int64_t{256} << 20;
  double flop = 64e9;  ///< seconds of work on one thread

  explicit Budget(const ir::Graph& graph) {
    for (const ir::Value& v : graph.values()) growth_bytes += v.data.defined() ? 8 * v.data.bytes() : 0;
  }
  /// Deducts the node's cost if enough of the budget is left.
  bool take(const ir::Graph& graph, const ir::Node& node) {
    const int64_t growth = std::max<int64_t>(0, result_bytes(graph, node) - operand_bytes(graph, node));
    const bool is_sized = std::all_of(node.out.begin(), node.out.end(), [&](ir::ValueId id) {
      return id == ir::kNoValue || graph.type(id).shape.is_static();
    });
    const double work = is_sized ? ir::cost_of(node.op->schema, graph.view(node)).flop : 0;
    if (growth > growth_bytes || work > flop) return false;
    growth_bytes -= growth;
    flop -= work;
    return true;
  }
};

/// shape and size need only the type of their operand.
bool fold_by_type(ir::Graph& graph, ir::NodeId id) {
  const ir::Node& node = graph.node(id);
  if (node.op_name() != "shape" && node.op_name() != "size") return false;
  if (!graph.type(node.in[0]).shape.is_static()) return false;
  const tensor::Dims dims = graph.type(node.in[0]).shape.to_dims();
  tensor::Tensor result;
  if (node.op_name() == "size") {
    result = tensor::Tensor::scalar<int64_t>(tensor::element_count(dims));
  } else {
    // start and end are clamped to the rank; negative ones count from its end (ONNX Shape, opset 15).
    const int64_t rank = static_cast<int64_t>(dims.size());
    const auto clamp = [rank](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
    const int64_t start = clamp(node.attrs.get_int("start", 0)), end = clamp(node.attrs.get_int("end", rank));
    const std::vector<int64_t> part(dims.begin() + start, dims.begin() + std::max(start, end));
    result =
        tensor::Tensor::from<int64_t>({static_cast<int64_t>(part.size())}, std::span<const int64_t>(part));
  }
  const ir::ValueId out = node.out[0];
  graph.erase(id);
  graph.replace_uses(out, graph.add_constant(std::move(result)));
  return true;
}

}  // namespace

bool fold_node(ir::Graph& graph, ir::NodeId id, int64_t max_bytes, base::ThreadPool& pool) {
  if (fold_by_type(graph, id)) return true;
  const ir::Node node = graph.node(id);
  if (!may_fold(graph, node) || result_bytes(graph, node) > max_bytes) return false;
  std::vector<tensor::Tensor> in;
  for (ir::ValueId v : node.in) in.push_back(v == ir::kNoValue ? tensor::Tensor() : *graph.known(v));
  std::vector<tensor::Tensor> out;
  try {
    out = ops::evaluate(*node.op, node.attrs, in, node.out.size(), pool);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::unsupported)
      return false;  // remains a node; the compiler reports why it cannot run
    throw e.with(base::concat("node '", node.from, "' (", node.op_name(), ")"));
  }
  graph.erase(id);
  for (size_t i = 0; i < out.size(); ++i) {
    if (node.out[i] == ir::kNoValue) continue;
    graph.replace_uses(node.out[i], graph.add_constant(std::move(out[i]), graph.value(node.out[i]).name));
  }
  return true;
}

size_t fold_constants(ir::Graph& graph) {
  Budget budget(graph);
  base::ThreadPool pool(1);
  size_t changes = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    const ir::Node& node = graph.node(id);
    if (node.op == nullptr || (may_fold(graph, node) && !budget.take(graph, node))) continue;
    changes += fold_node(graph, id, INT64_MAX, pool);
  }
  graph.sort();
  return changes;
}

}  // namespace trireme::passes
