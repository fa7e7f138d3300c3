// Building blocks of gradient rules: nodes by operator name, and the adjoint of broadcasting.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace trireme::ops {

using ir::ValueId;
/// One entry per operand; nullopt: the operand has no gradient (integers, shapes, absent operands).
using Gradients = std::vector<std::optional<ValueId>>;

/// Adds the nodes of one gradient rule. All shapes are static; new nodes carry the name of the node that is
/// differentiated. Nodes that no other node reads are removed later, so rules compute the gradients of all
/// operands, by separate nodes where these share no work.
class GradBuilder {
 public:
  /// `node`: the node to differentiate (a copy: the graph grows). `out_grads`: gradients of its results.
  GradBuilder(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads)
      : graph_(graph), node_(node), out_grads_(out_grads) {}

  ValueId in(size_t i) const { return i < node_.in.size() ? node_.in[i] : ir::kNoValue; }
  ValueId out(size_t i = 0) const { return node_.out[i]; }
  size_t results() const { return node_.out.size(); }
  bool has(size_t i) const { return in(i) != ir::kNoValue; }
  /// The gradient of result i; kNoValue if none arrives.
  ValueId grad(size_t i = 0) const { return i < out_grads_.size() ? out_grads_[i] : ir::kNoValue; }
  const ir::Attrs& attrs() const { return node_.attrs; }
  const tensor::TensorType& type(ValueId id) const { return graph_.type(id); }
  tensor::Dims dims(ValueId id) const { return graph_.type(id).shape.to_dims(); }
  ir::NodeView view() const { return graph_.view(node_); }
  /// The constant content of operand i, or null.
  const tensor::Tensor* known(size_t i) const { return has(i) ? graph_.known(in(i)) : nullptr; }
  ir::Graph& graph() { return graph_; }

  ValueId op(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs = {});
  std::vector<ValueId> ops(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs, size_t results);
  ValueId ints(const std::vector<int64_t>& values);  ///< i64 [n]
  /// A scalar of the element type of `like`.
  ValueId scalar(double value, ValueId like);
  /// Zeros of the type of `like`.
  ValueId zeros_like(ValueId like);
  ValueId constant(tensor::Tensor data) { return graph_.add_constant(std::move(data)); }

  ValueId add(ValueId a, ValueId b) { return op("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op("sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op("mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op("div", {a, b}); }
  ValueId neg(ValueId a) { return op("neg", {a}); }
  /// x * number, x + number.
  ValueId scaled(ValueId x, double factor) { return mul(x, scalar(factor, x)); }
  ValueId plus(ValueId x, double term) { return add(x, scalar(term, x)); }
  ValueId reshape(ValueId x, const tensor::Dims& shape);
  ValueId transpose(ValueId x, const std::vector<int64_t>& perm);
  ValueId reduce_sum(ValueId x, const std::vector<int64_t>& axes, bool keepdims);
  /// NumPy broadcast of x to `shape`.
  ValueId expand(ValueId x, const tensor::Dims& shape);
  /// The adjoint of broadcasting: sums g over the dimensions along which an operand of shape `shape` was
  /// repeated. g [..., broadcast shape] -> [shape].
  ValueId reduce_to(ValueId g, const tensor::Dims& shape);
  /// reduce_to the shape of operand i.
  ValueId to_operand(ValueId g, size_t i) { return reduce_to(g, dims(in(i))); }

  /// No gradient for any operand; fill in by index.
  Gradients none() const { return Gradients(node_.in.size()); }

 private:
  ir::Graph& graph_;
  const ir::Node& node_;
  std::span<const ValueId> out_grads_;
};

/// A gradient rule from a function of the builder: most rules of the schemas are written as
/// `.grad = rule([](GradBuilder& g) -> Gradients { ... })`.
template <class F>
ir::GradFn rule(F f) {
  return [f](ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
    GradBuilder g(graph, node, out_grads);
    return f(g);
  };
}

/// Walks the nodes from the last to `first` and adds the gradient of every value that depends on a value
/// marked in `wanted`. `grads` holds by value index what flows in (kNoValue: nothing) and receives the
/// gradients of all marked values; several uses are summed in order of the walk. Throws unsupported naming
/// the node when a needed gradient does not exist, with the op's reason, or when a shape there is not static.
void backpropagate(ir::Graph& graph, size_t first, std::vector<char> wanted, std::vector<ValueId>& grads);

/// The gradient of a node by its `expand`: builds the simpler nodes and differentiates those in turn. For
/// fused ops without a backward of their own.
ir::GradFn grad_by_expand();

}  // namespace trireme::ops
