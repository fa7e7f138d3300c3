// Binds symbolic input shapes to numbers and follows them through the graph.
#include <algorithm>
#include <unordered_map>

#include "ops/table.h"
#include "passes/cleanup/fold.h"
#include "passes/lists/lists.h"

namespace trireme::passes {
namespace {

/// Checks `dims` against the declared shape, and that each symbol has the same value in all inputs.
void check_declared(const ir::Value& input, const tensor::Dims& dims,
                    std::unordered_map<std::string, int64_t>& symbols) {
  const tensor::Shape& declared = input.type.shape;
  if (!declared.has_rank()) return;
  const auto refuse = [&] {
    base::fail_invalid("input '", input.name, "' has shape ", tensor::to_string(dims), ", the model takes ",
                       declared.to_string());
  };
  if (declared.rank() != dims.size()) refuse();
  for (size_t i = 0; i < dims.size(); ++i) {
    const tensor::Dim& d = declared[i];
    if (d.is_static() && d.value() != dims[i]) refuse();
    if (d.is_static() || d.is_unknown()) continue;
    const auto [at, is_new] = symbols.emplace(d.name(), dims[i]);
    if (!is_new && at->second != dims[i]) {
      base::fail_invalid("dimension '", d.name(), "' is ", at->second, " in one input and ", dims[i], " in '",
                         input.name, "'");
    }
  }
}

}  // namespace

namespace {

/// Integers, and floats of rank up to 1 (scales): the values of shape arithmetic. Larger floats are left to
/// the program: those of a single row would be small enough to be computed here, by other kernels than those
/// that compute a batch.
bool is_shape_arithmetic(const ir::Graph& graph, const ir::Node& node) {
  return std::all_of(node.out.begin(), node.out.end(), [&](ir::ValueId id) {
    if (id == ir::kNoValue || !tensor::is_float(graph.type(id).dtype)) return true;
    return graph.type(id).shape.has_rank() && graph.type(id).shape.rank() < 2;
  });
}

}  // namespace

ir::Graph bind_open_shapes(const ir::Graph& graph, const std::vector<tensor::Shape>& shapes) {
  // A constant that is computed here exists once per bucket, so only the small integers of shape arithmetic
  // are worth computing.
  constexpr int64_t kMaxBytes = 4096;
  ir::Graph bound = graph;
  for (size_t i = 0; i < shapes.size(); ++i) bound.value(bound.inputs()[i]).type.shape = shapes[i];
  base::ThreadPool pool(1);
  const size_t count = bound.nodes().size();
  for (size_t n = 0; n < count; ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    if (bound.node(id).op == nullptr) continue;
    bound.infer_node(id);
    if (is_shape_arithmetic(bound, bound.node(id))) fold_node(bound, id, kMaxBytes, pool);
  }
  bound.sort();
  return bound;
}

ir::Graph bind_shapes(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes) {
  base::require(shapes.size() == graph.inputs().size(), "the model takes ", graph.inputs().size(),
                " inputs, got ", shapes.size());
  std::unordered_map<std::string, int64_t> symbols;
  std::vector<tensor::Shape> bound;
  for (size_t i = 0; i < shapes.size(); ++i) {
    check_declared(graph.value(graph.inputs()[i]), shapes[i], symbols);
    bound.push_back(tensor::Shape::of(shapes[i]));
  }
  return bind_open_shapes(graph, bound);
}

}  // namespace trireme::passes
