// Splits nodes that every rank would otherwise have to compute as a whole: sums over a cut index come first;
// terms that are added once and nonlinear functions follow after the reduction.
#include "ops/dense/activation.h"
#include "ops/table.h"
#include "passes/partition/partition_walk.h"

#include "ops/reduce/reduce.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

ValueId operand(const Node& node, size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; }

const ir::OpDef& op(std::string_view name) { return ops::table().need(name); }

size_t rank_of(const ir::Graph& graph, ValueId id) { return graph.type(id).shape.rank(); }

/// Names the nodes that were added from number `first` on.
void name_nodes(ir::Graph& graph, size_t first, const std::string& from) {
  for (size_t n = first; n < graph.nodes().size(); ++n)
    graph.node(ir::NodeId(static_cast<uint32_t>(n))).from = from;
}

/// act(x w + bias + residual) becomes the product alone, followed by the other steps.
std::optional<ValueId> split_linear(ir::Graph& graph, const Node& node, AxisValues& values) {
  const ops::ActivationSpec act = ops::activation_of(node.attrs);
  const bool has_more = operand(node, 2) != ir::kNoValue || operand(node, 3) != ir::kNoValue;
  if (node.out.size() > 1 || (!has_more && act.kind == ops::ActivationKind::none)) return std::nullopt;
  const size_t k = node.attrs.get_int("transposed", 0) != 0 ? 1 : 0;
  const bool sums_parts =
      values.is_cut_along(node.in[0], rank_of(graph, node.in[0]) - 1) || values.is_cut_along(node.in[1], k);
  if (!sums_parts) return std::nullopt;
  const ir::Attrs attrs{{"transposed", node.attrs.get_int("transposed", 0)}};
  ValueId y = graph.add1(op("linear"), {node.in[0], node.in[1]}, attrs);
  if (operand(node, 2) != ir::kNoValue) y = graph.add1(op("add"), {y, node.in[2]});
  return ops::expand_finish(graph, y, operand(node, 3), act);
}

/// alpha a b + beta c becomes the product alone, followed by the addition of c.
std::optional<ValueId> split_gemm(ir::Graph& graph, const Node& node, AxisValues& values) {
  if (operand(node, 2) == ir::kNoValue) return std::nullopt;
  const size_t ka = node.attrs.get_int("transA", 0) != 0 ? 0 : 1;
  const size_t kb = node.attrs.get_int("transB", 0) != 0 ? 1 : 0;
  if (!values.is_cut_along(node.in[0], ka) && !values.is_cut_along(node.in[1], kb)) return std::nullopt;
  ir::Attrs attrs = node.attrs;
  attrs.erase("beta");
  const ValueId product = graph.add1(op("gemm"), {node.in[0], node.in[1]}, attrs);
  ValueId c = node.in[2];
  const double beta = node.attrs.get_float("beta", 1);
  if (beta != 1) {
    const ValueId factor = graph.add_constant(tensor::visit_dtype(
        graph.type(c).dtype, [&](auto t) { return tensor::Tensor::scalar(static_cast<decltype(t)>(beta)); }));
    c = graph.add1(op("mul"), {c, factor});
  }
  return graph.add1(op("add"), {product, c});
}

/// A mean over a cut dimension becomes a sum, which may be partial, times 1 / terms.
std::optional<ValueId> split_mean(ir::Graph& graph, const Node& node, AxisValues& values) {
  const std::vector<bool> reduced = ops::reduced_axes(graph.view(node));
  const tensor::Dims dims = graph.type(node.in[0]).shape.to_dims();
  bool is_cut = false;
  int64_t terms = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!reduced[d]) continue;
    terms *= dims[d];
    is_cut = is_cut || values.is_cut_along(node.in[0], d);
  }
  if (!is_cut || !tensor::is_float(graph.type(node.in[0]).dtype)) return std::nullopt;
  const ValueId sum = graph.add1(op("reduce_sum"), node.in, node.attrs);
  const ValueId share = graph.add_constant(tensor::visit_dtype(graph.type(sum).dtype, [&](auto t) {
    return tensor::Tensor::scalar(static_cast<decltype(t)>(1.0 / static_cast<double>(terms)));
  }));
  return graph.add1(op("mul"), {sum, share});
}

}  // namespace

std::optional<ValueId> simplify_for_cut(ir::Graph& graph, const Node& node, AxisValues& values) {
  const size_t first = graph.nodes().size();
  const std::string from = node.from;
  std::optional<ValueId> result;
  if (node.op_name() == "linear") result = split_linear(graph, node, values);
  if (node.op_name() == "gemm") result = split_gemm(graph, node, values);
  if (node.op_name() == "reduce_mean") result = split_mean(graph, node, values);
  name_nodes(graph, first, from);
  return result;
}

}  // namespace trireme::passes
