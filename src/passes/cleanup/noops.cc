// Removes nodes that change nothing: identities, casts to the same type, dropout in inference, and transposes
// and reshapes that undo each other.
#include <algorithm>
#include <numeric>
#include <utility>

#include "ir/notation.h"
#include "ops/elementwise/cast.h"
#include "passes/cleanup/cleanup.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

bool is_identity_permutation(const std::vector<int64_t>& perm) {
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

/// The permutation of a transpose; without the attribute it reverses the axes.
std::vector<int64_t> permutation(const Node& node, const ir::Graph& graph) {
  std::vector<int64_t> perm = node.attrs.get_ints("perm");
  if (!perm.empty() || !graph.type(node.in[0]).shape.has_rank()) return perm;
  perm.resize(graph.type(node.in[0]).shape.rank());
  std::iota(perm.rbegin(), perm.rend(), int64_t{0});
  return perm;
}

bool remove_transpose(Rewriter& rw, const Node& node) {
  const std::vector<int64_t> outer = permutation(node, rw.graph());
  if (outer.empty()) return false;
  if (is_identity_permutation(outer)) {
    rw.replace(node.out[0], node.in[0]);
    return true;
  }
  const auto before = rw.producer(node.in[0], "transpose");
  if (!before) return false;
  const std::vector<int64_t> inner = permutation(*before, rw.graph());
  if (inner.size() != outer.size()) return false;  // a reversal of axes of unknown rank
  std::vector<int64_t> both;
  for (int64_t axis : outer) both.push_back(inner[static_cast<size_t>(axis)]);
  const ValueId merged = is_identity_permutation(both)
                             ? before->in[0]
                             : rw.add("transpose", {before->in[0]}, {{"perm", both}}, node.from);
  rw.replace(node.out[0], merged);
  return true;
}

/// True for views that change only the shape, not the element type.
bool is_reshaping(const ir::Graph& graph, const Node& node) {
  return node.op->schema.is_view && graph.type(node.in[0]).dtype == graph.type(node.out[0]).dtype;
}

/// A view of a view, or a view that keeps the shape.
bool remove_view(Rewriter& rw, const Node& node) {
  const auto to = rw.dims(node.out[0]), from = rw.dims(node.in[0]);
  if (!to || !from) return false;
  if (*to == *from) {
    rw.replace(node.out[0], node.in[0]);
    return true;
  }
  const Node* before = rw.graph().producer(node.in[0]);
  if (before == nullptr || !is_reshaping(rw.graph(), *before)) return false;
  const ValueId source = before->in[0];
  if (rw.dims(source) == to) {
    rw.replace(node.out[0], source);
    return true;
  }
  const ValueId shape = rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(to->size())}, std::span<const int64_t>(*to)));
  rw.replace(node.out[0], rw.add("reshape", {source, shape}, {{"allowzero", int64_t{1}}}, node.from));
  return true;
}

/// Whether operands of these extents broadcast to `y` by themselves.
bool repeat_to(const std::vector<tensor::Dims>& operands, const tensor::Dims& y) {
  for (size_t from_last = 1; from_last <= y.size(); ++from_last) {
    int64_t most = 1;
    for (const tensor::Dims& dims : operands) {
      if (dims.size() >= from_last && dims[dims.size() - from_last] != 1)
        most = dims[dims.size() - from_last];
    }
    if (most != y[y.size() - from_last]) return false;
  }
  return true;
}

/// Whether the operator takes the operands of `node` and makes results of the same type of them. The notation
/// lets operands broadcast, but the operator may want equal extents, as only its rule of types knows.
bool keeps_type(const ir::Graph& graph, const Node& node) {
  ir::NodeView view = graph.view(node);
  view.out.clear();
  try {
    return ir::infer_types(node.op->schema, view)[0] == graph.type(node.out[0]);
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::invalid_argument) throw;
    return false;
  }
}

/// Removes an expand before an elementwise node if the node's other operands broadcast the operand to the
/// same extents anyway.
bool remove_expand(Rewriter& rw, const Node& node) {
  if (!ir::is_elementwise(node.op->schema) || node.op->schema.is_random || node.out.size() != 1) return false;
  const auto y = rw.dims(node.out[0]);
  if (!y) return false;
  std::vector<size_t> at;
  std::vector<tensor::Dims> operands;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] == ir::kNoValue || !ir::spreads_over_results(node.op->schema, i)) continue;
    const auto dims = rw.dims(node.in[i]);
    if (!dims) return false;
    at.push_back(i);
    operands.push_back(*dims);
  }
  Node plain = node;
  bool changed = false;
  for (size_t k = 0; k < at.size(); ++k) {
    const auto expand = rw.producer(node.in[at[k]], "expand");
    const auto from = expand ? rw.dims(expand->in[0]) : std::nullopt;
    if (!from) continue;
    const tensor::Dims was = std::exchange(operands[k], *from);
    if (repeat_to(operands, *y)) {
      plain.in[at[k]] = expand->in[0];
      changed = true;
    } else {
      operands[k] = was;
    }
  }
  if (!changed || !keeps_type(rw.graph(), plain)) return false;
  rw.replace(node.out[0], rw.add(node.op_name(), plain.in, plain.attrs, node.from));
  return true;
}

bool remove_one(Rewriter& rw, const Node& node) {
  const std::string_view op = node.op_name();
  const bool plain_dropout =
      op == "dropout" && (node.in.size() < 3 || node.in[2] == ir::kNoValue || rw.is_scalar(node.in[2], 0)) &&
      (node.out.size() < 2 || node.out[1] == ir::kNoValue || rw.uses(node.out[1]) == 0);
  // A cast to the type of another tensor depends on that tensor's type only.
  const bool same_cast = ops::is_cast(node.op->schema) &&
                         rw.graph().type(node.in[0]).dtype == rw.graph().type(node.out[0]).dtype;
  if (op == "identity" || plain_dropout || same_cast) {
    rw.replace(node.out[0], node.in[0]);
    return true;
  }
  if (op == "transpose") return remove_transpose(rw, node);
  if (remove_expand(rw, node)) return true;
  return is_reshaping(rw.graph(), node) && remove_view(rw, node);
}

}  // namespace

size_t remove_noops(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) { return remove_one(rw, node); });
}

}  // namespace trireme::passes
