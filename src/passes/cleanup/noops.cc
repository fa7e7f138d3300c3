// Removes nodes that change nothing: identities, same-type casts, inference dropout, undone transposes and
// reshapes.
#include <algorithm>
#include <numeric>

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

/// The permutation of a transpose; without the attribute it reverses.
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
  if (inner.size() != outer.size()) return false;  // a reversal of unknown rank
  std::vector<int64_t> both;
  for (int64_t axis : outer) both.push_back(inner[static_cast<size_t>(axis)]);
  const ValueId merged = is_identity_permutation(both)
                             ? before->in[0]
                             : rw.add("transpose", {before->in[0]}, {{"perm", both}}, node.from);
  rw.replace(node.out[0], merged);
  return true;
}

/// Views that change the shape alone, not the element type.
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

bool remove_one(Rewriter& rw, const Node& node) {
  const std::string_view op = node.op_name();
  const bool plain_dropout =
      op == "dropout" && (node.in.size() < 3 || node.in[2] == ir::kNoValue || rw.is_scalar(node.in[2], 0)) &&
      (node.out.size() < 2 || node.out[1] == ir::kNoValue || rw.uses(node.out[1]) == 0);
  // A cast to the type of another tensor reads nothing else of it.
  const bool same_cast = ops::is_cast(node.op->schema) &&
                         rw.graph().type(node.in[0]).dtype == rw.graph().type(node.out[0]).dtype;
  if (op == "identity" || plain_dropout || same_cast) {
    rw.replace(node.out[0], node.in[0]);
    return true;
  }
  if (op == "transpose") return remove_transpose(rw, node);
  return is_reshaping(rw.graph(), node) && remove_view(rw, node);
}

}  // namespace

size_t remove_noops(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) { return remove_one(rw, node); });
}

}  // namespace trireme::passes
