// Gradient rules: the builder they share, the backward pass, and gradients of fused ops by their expansion.
#include "ops/grad.h"

#include <algorithm>

#include "ops/table.h"

namespace trireme::ops {

using tensor::Dims;
using tensor::Tensor;

ValueId GradBuilder::op(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs) {
  return ops(name, std::move(in), std::move(attrs), 1)[0];
}

std::vector<ValueId> GradBuilder::ops(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs,
                                      size_t results) {
  return graph_.add(table().need(name), std::move(in), std::move(attrs), results, node_.from);
}

ValueId GradBuilder::ints(const std::vector<int64_t>& values) {
  return graph_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

ValueId GradBuilder::scalar(double value, ValueId like) {
  Tensor t = Tensor::empty(type(like).dtype, {});
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    t.mutable_data<decltype(zero)>()[0] = static_cast<decltype(zero)>(value);
  });
  return constant(std::move(t));
}

ValueId GradBuilder::zeros_like(ValueId like) { return expand(scalar(0, like), dims(like)); }

ValueId GradBuilder::reshape(ValueId x, const Dims& shape) {
  if (dims(x) == shape) return x;
  const bool is_empty = tensor::element_count(shape) == 0;  // an extent of 0 must not mean "keep"
  return op("reshape", {x, ints(shape)}, is_empty ? ir::Attrs{{"allowzero", int64_t{1}}} : ir::Attrs{});
}

ValueId GradBuilder::transpose(ValueId x, const std::vector<int64_t>& perm) {
  return op("transpose", {x}, {{"perm", perm}});
}

ValueId GradBuilder::reduce_sum(ValueId x, const std::vector<int64_t>& axes, bool keepdims) {
  if (axes.empty()) return x;
  return op("reduce_sum", {x, ints(axes)}, {{"keepdims", int64_t{keepdims}}});
}

ValueId GradBuilder::expand(ValueId x, const Dims& shape) {
  return dims(x) == shape ? x : op("expand", {x, ints(shape)});
}

ValueId GradBuilder::reduce_to(ValueId g, const Dims& shape) {
  const Dims from = dims(g);
  base::check(from.size() >= shape.size(), "a gradient of rank ", from.size(), " for an operand of rank ",
              shape.size());
  const size_t lead = from.size() - shape.size();
  std::vector<int64_t> axes;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i < lead || (shape[i - lead] == 1 && from[i] != 1)) axes.push_back(static_cast<int64_t>(i));
  }
  // Sums runs of neighbouring axes, the innermost first, since kernels then read memory in long runs.
  while (!axes.empty()) {
    size_t first = axes.size() - 1;
    while (first > 0 && axes[first - 1] + 1 == axes[first]) --first;
    g = reduce_sum(g, {axes.begin() + static_cast<int64_t>(first), axes.end()}, true);
    axes.resize(first);
  }
  return reshape(g, shape);
}

namespace {

/// Marks the values that nodes from `first` on compute from marked values.
void mark_dependents(const ir::Graph& graph, size_t first, std::vector<char>& wanted) {
  for (size_t n = first; n < graph.nodes().size(); ++n) {
    const ir::Node& node = graph.nodes()[n];
    if (node.op == nullptr) continue;
    bool depends = false;
    for (ValueId id : node.in) depends |= id != ir::kNoValue && wanted[index(id)] != 0;
    if (!depends) continue;
    for (ValueId id : node.out) {
      if (id != ir::kNoValue && tensor::is_float(graph.type(id).dtype)) wanted[index(id)] = 1;
    }
  }
}

bool has_extents(const ir::Graph& graph, ValueId id) {
  return id == ir::kNoValue || graph.type(id).shape.is_static();
}

/// The first node, among those that `id` is computed by, whose result has an extent that its operands' shapes
/// do not tell.
const ir::Node* origin_of_extents(const ir::Graph& graph, ValueId id) {
  const ir::Node* node = graph.producer(id);
  for (const ir::Node* at = node; at != nullptr;) {
    node = at;
    const auto open = std::find_if(node->in.begin(), node->in.end(),
                                   [&](ValueId operand) { return !has_extents(graph, operand); });
    at = open == node->in.end() ? nullptr : graph.producer(*open);
  }
  return node;
}

/// Gradient rules count with extents.
void require_extents(const ir::Graph& graph, const ir::Node& node) {
  for (const std::vector<ValueId>* ids : {&node.in, &node.out}) {
    for (const ValueId id : *ids) {
      if (has_extents(graph, id)) continue;
      const ir::Node* origin = origin_of_extents(graph, id);
      const std::string by = origin == nullptr ? ""
                                               : base::concat("; the first of such a type comes from node '",
                                                              origin->from, "' (", origin->op_name(), ")");
      base::fail_unsupported("node '", node.from, "' (", node.op_name(), ") cannot be differentiated: the ",
                             "extents of ", graph.type(id).to_string(), " '", graph.value(id).name,
                             "' do not follow from the shapes of the inputs alone", by);
    }
  }
}

Gradients gradients_of(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
  const ir::OpSchema& op = node.op->schema;
  if (!op.grad) {
    const std::string why = op.why_no_grad.empty() ? "it has no gradient rule" : op.why_no_grad;
    base::fail_unsupported("node '", node.from, "' (", op.name, ") cannot be differentiated: ", why);
  }
  require_extents(graph, node);
  try {
    return op.grad(graph, node, out_grads);
  } catch (const base::Error& e) {
    throw e.with(base::concat("gradient of node '", node.from, "' (", op.name, ")"));
  }
}

/// a + b. The gradient of an embedding touches few rows of a large table, so it is added to the other in
/// place.
ValueId summed(ir::Graph& graph, ValueId a, ValueId b, const std::string& from) {
  for (const auto& [rows, other] : {std::pair(b, a), std::pair(a, b)}) {
    const ir::Node* made = graph.producer(rows);
    if (made == nullptr || made->op_name() != "gather_grad" || made->in.size() != 2) continue;
    return graph.add1(*made->op, {made->in[0], made->in[1], other}, made->attrs, from);
  }
  return graph.add1(table().need("add"), {a, b}, {}, from);
}

/// Adds `term` to the gradient of `id`.
void collect(ir::Graph& graph, std::vector<ValueId>& grads, ValueId id, ValueId term,
             const std::string& from) {
  base::check(graph.type(id).shape == graph.type(term).shape, "a gradient of type ",
              graph.type(term).to_string(), " for a value of type ", graph.type(id).to_string());
  ValueId& sum = grads[index(id)];
  sum = sum == ir::kNoValue ? term : summed(graph, sum, term, from);
}

}  // namespace

void backpropagate(ir::Graph& graph, size_t first, std::vector<char> wanted, std::vector<ValueId>& grads) {
  const size_t count = graph.nodes().size();
  wanted.resize(graph.values().size(), 0);
  grads.resize(graph.values().size(), ir::kNoValue);
  mark_dependents(graph, first, wanted);
  for (size_t n = count; n-- > first;) {
    const ir::Node node = graph.nodes()[n];
    if (node.op == nullptr) continue;
    std::vector<ValueId> out_grads;
    bool arrives = false;
    for (ValueId id : node.out) {
      out_grads.push_back(id == ir::kNoValue || !wanted[index(id)] ? ir::kNoValue : grads[index(id)]);
      arrives |= out_grads.back() != ir::kNoValue;
    }
    if (!arrives) continue;
    const Gradients terms = gradients_of(graph, node, out_grads);
    base::check(terms.size() == node.in.size(), "the gradient of op '", node.op_name(), "' yields ",
                terms.size(), " entries for ", node.in.size(), " operands");
    for (size_t i = 0; i < terms.size(); ++i) {
      const ValueId id = node.in[i];
      if (id == ir::kNoValue || !wanted[index(id)]) continue;
      if (terms[i] && *terms[i] != ir::kNoValue) collect(graph, grads, id, *terms[i], node.from);
    }
  }
}

ir::GradFn grad_by_expand() {
  return [](ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) -> Gradients {
    base::check(static_cast<bool>(node.op->schema.expand), "op '", node.op_name(), "' has no expansion");
    const size_t first = graph.nodes().size();
    const std::vector<ValueId> results = node.op->schema.expand(graph, node);
    std::vector<char> wanted(graph.values().size(), 0);
    for (ValueId id : node.in) {
      if (id != ir::kNoValue && tensor::is_float(graph.type(id).dtype)) wanted[index(id)] = 1;
    }
    std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
    for (size_t i = 0; i < results.size() && i < out_grads.size(); ++i) {
      if (results[i] != ir::kNoValue) grads[index(results[i])] = out_grads[i];
    }
    backpropagate(graph, first, wanted, grads);
    Gradients out(node.in.size());
    for (size_t i = 0; i < node.in.size(); ++i) {
      const ValueId id = node.in[i];
      if (id != ir::kNoValue && grads[index(id)] != ir::kNoValue) out[i] = grads[index(id)];
    }
    return out;
  };
}

}  // namespace trireme::ops
