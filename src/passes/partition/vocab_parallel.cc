// Cross entropy over classes that are split over ranks: rewrites the loss in a form that the partition pass
// can cut.
#include "passes/partition/vocab_parallel.h"

#include <algorithm>

#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

constexpr size_t kMaxAxes = 8;  // a mesh has four

ValueDim of_product(const ir::Graph& graph, const Node& node, size_t dim) {
  const size_t rank = graph.type(node.out[0]).shape.rank();
  if (dim + 1 < rank) return {node.in[0], dim};
  const size_t columns = graph.type(node.in[1]).shape.rank();
  const bool is_transposed = node.attrs.get_int("transposed", 0) != 0 || node.attrs.get_int("transB", 0) != 0;
  return columns < 2 ? ValueDim{} : ValueDim{node.in[1], is_transposed ? columns - 2 : columns - 1};
}

ValueDim of_transpose(const ir::Graph& graph, const Node& node, size_t dim) {
  std::vector<int64_t> perm = node.attrs.get_ints("perm");
  const size_t rank = graph.type(node.out[0]).shape.rank();
  for (size_t d = 0; perm.size() < rank; ++d) perm.push_back(static_cast<int64_t>(rank - 1 - d));
  return {node.in[0], static_cast<size_t>(perm[dim])};
}

/// The last dimension of a reshape that keeps it, or of an operand with the result's shape.
ValueDim of_other(const ir::Graph& graph, const Node& node, size_t dim) {
  const tensor::Shape& y = graph.type(node.out[0]).shape;
  if (node.op_name() == "reshape") {
    const tensor::Shape& x = graph.type(node.in[0]).shape;
    const bool keeps = dim + 1 == y.rank() && x.rank() > 0 && x[x.rank() - 1] == y[dim];
    return keeps ? ValueDim{node.in[0], x.rank() - 1} : ValueDim{};
  }
  if (!ir::is_elementwise(node.op->schema)) return {};
  for (ValueId id : node.in) {
    if (id != ir::kNoValue && graph.type(id).shape == y) return {id, dim};
  }
  return {};
}

ValueDim origin_of(const ir::Graph& graph, const Node& node, size_t dim) {
  const std::string_view op = node.op_name();
  if (op == "linear" || op == "matmul" || op == "gemm") return of_product(graph, node, dim);
  if (op == "transpose") return of_transpose(graph, node, dim);
  return of_other(graph, node, dim);
}

void replace(ir::Graph& graph, const Node& node, int parts) {
  const auto add = [&](std::string_view op, std::vector<ValueId> in, ir::Attrs attrs, size_t results) {
    return graph.add(ops::table().need(op), std::move(in), std::move(attrs), results, node.from);
  };
  const int64_t classes = graph.type(node.in[0]).shape.to_dims().back();
  const ValueId target = node.in[1];
  ir::Attrs attrs{{"classes", classes}};
  for (const char* name : {"ignore_index", "label_smoothing"}) {
    if (const ir::AttrValue* value = node.attrs.find(name)) attrs.set(name, *value);
  }
  ir::Attrs of_part = attrs;
  of_part.set("parts", int64_t{parts});
  const auto part = add("cross_entropy_part", {node.in[0], target}, of_part, 2);
  const ValueId last = graph.add_constant(tensor::Tensor::from<int64_t>({1}, {-1}));
  const ValueId largest = add("reduce_max", {part[0], last}, {{"keepdims", int64_t{0}}}, 1)[0];
  const ValueId totals = add("cross_entropy_total", {part[0], part[1], largest}, {}, 1)[0];
  ir::Attrs of_loss = attrs;
  of_loss.set("z_loss", node.attrs.get_float("z_loss", 0));
  const auto results =
      add("cross_entropy_join", {largest, totals, target}, std::move(of_loss), node.out.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.out[i] != ir::kNoValue) graph.replace_uses(node.out[i], results[i]);
  }
}

}  // namespace

ValueDim root_of_dim(const ir::Graph& graph, ValueId id, size_t dim) {
  ValueDim at{id, dim};
  while (at.value != ir::kNoValue) {
    const Node* node = graph.producer(at.value);
    if (node == nullptr) return at;
    at = graph.value(at.value).producer_index == 0 ? origin_of(graph, *node, at.dim) : ValueDim{};
  }
  return at;
}

std::vector<size_t> split_axes(const ir::Graph& graph, ValueId id, size_t dim,
                               const std::map<std::string, tensor::Shard>& placed) {
  std::vector<size_t> axes;
  const ValueDim root = root_of_dim(graph, id, dim);
  const auto named = root.value == ir::kNoValue ? placed.end() : placed.find(graph.value(root.value).name);
  for (size_t a = 0; named != placed.end() && a < kMaxAxes; ++a) {
    const tensor::Placement p = named->second.on(a);
    if (p.is_split() && p.dim == static_cast<int>(root.dim)) axes.push_back(a);
  }
  return axes;
}

size_t split_classes(ir::Graph& graph, const std::map<std::string, tensor::Shard>& placed,
                     const tensor::MeshShape& mesh) {
  size_t changes = 0;
  const size_t count = graph.nodes().size();
  for (size_t n = 0; n < count; ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    const Node node = graph.node(id);
    if (node.op == nullptr || node.op_name() != "cross_entropy") continue;
    const size_t rank = graph.type(node.in[0]).shape.rank();
    int parts = 1;
    for (size_t axis : split_axes(graph, node.in[0], rank - 1, placed)) parts *= mesh.axes()[axis].extent;
    if (parts == 1) continue;
    replace(graph, node, parts);
    ++changes;
  }
  if (changes > 0) graph.sort();
  return changes;
}

}  // namespace trireme::passes
