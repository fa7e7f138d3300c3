// Fuses ReLUs and residual sums into the batch norms of a training graph.
#include "passes/fuse/train_norms.h"

#include "passes/fuse/dense.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// The batch norm that computes `id`, if `id` has one reader only.
std::optional<Node> sole_norm(const Rewriter& rw, ValueId id) {
  const std::optional<Node> norm = rw.producer(id, "batch_norm_train");
  return norm && norm->out[0] == id && rw.single_use(id) ? norm : std::nullopt;
}

bool has_residual(const Node& norm) { return norm.in.size() > 3 && norm.in[3] != ir::kNoValue; }

/// Replaces `last` by `norm`, which now computes its result.
void replace_by(Rewriter& rw, const Node& norm, ValueId last) {
  const std::vector<ValueId> results = rw.add_all(norm.op_name(), norm, norm.out.size());
  rw.replace(last, results[0]);
  for (size_t i = 1; i < results.size(); ++i) {
    if (norm.out[i] != ir::kNoValue) rw.replace(norm.out[i], results[i]);
  }
}

/// A sum of a plain batch norm and a value of the same shape, as a norm with that value as its residual.
std::optional<Node> with_residual(const Rewriter& rw, const Node& sum) {
  for (size_t side : {size_t{0}, size_t{1}}) {
    std::optional<Node> norm = sole_norm(rw, sum.in[side]);
    if (!norm || has_activation(*norm) || has_residual(*norm)) continue;
    const ValueId other = sum.in[1 - side];
    if (rw.graph().type(other) != rw.graph().type(norm->out[0]) || !rw.dims(other)) continue;
    norm->in.resize(3);
    norm->in.push_back(other);
    return norm;
  }
  return std::nullopt;
}

bool fuse_relu(Rewriter& rw, const Node& relu) {
  if (rw.uses(relu.out[0]) == 0) return false;
  std::optional<Node> norm = sole_norm(rw, relu.in[0]);
  if (!norm && rw.single_use(relu.in[0])) {
    const std::optional<Node> sum = rw.producer(relu.in[0], "add");
    if (sum) norm = with_residual(rw, *sum);
  }
  if (!norm || has_activation(*norm)) return false;
  norm->attrs.set("activation", std::string("relu"));
  replace_by(rw, *norm, relu.out[0]);
  return true;
}

bool fuse_sum(Rewriter& rw, const Node& sum) {
  // Sums that were fused into norms with ReLU are still in the list of nodes.
  if (rw.uses(sum.out[0]) == 0) return false;
  const std::optional<Node> norm = with_residual(rw, sum);
  if (norm) replace_by(rw, *norm, sum.out[0]);
  return norm.has_value();
}

bool fuse_gradient_sum(Rewriter& rw, const Node& sum) {
  if (rw.uses(sum.out[0]) == 0) return false;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId dx = sum.in[side], other = sum.in[1 - side];
    std::optional<Node> norm = rw.producer(dx, "layer_norm_grad");
    if (!norm) norm = rw.producer(dx, "rms_norm_grad");
    if (!norm || norm->out[0] != dx || !rw.single_use(dx) || has_residual(*norm)) continue;
    if (rw.graph().type(other) != rw.graph().type(dx)) continue;
    norm->in.resize(4, ir::kNoValue);
    norm->in[3] = other;
    replace_by(rw, *norm, sum.out[0]);
    return true;
  }
  return false;
}

/// Lets the backward norm read the two summands of dy itself, if dy is a ReLU gradient of a sum: each summand
/// is then read once, by the pass that adds them.
bool take_two_parts(Rewriter& rw, const Node& norm) {
  constexpr size_t kResidual = 3, kSecondPart = 7;
  if (norm.out.size() <= kResidual || norm.in.size() > kSecondPart || !rw.single_use(norm.in[0]))
    return false;
  const std::optional<Node> sum = rw.producer(norm.in[0], "add");
  if (!sum || rw.graph().type(sum->in[0]) != rw.graph().type(sum->in[1])) return false;
  Node both = norm;
  both.in.resize(kSecondPart + 1, ir::kNoValue);
  both.in[0] = sum->in[0];
  both.in[kSecondPart] = sum->in[1];
  replace_by(rw, both, norm.out[0]);
  return true;
}

}  // namespace

size_t fuse_norm_gradient_sums(ir::Graph& graph) {
  Rewriter rw(graph);
  const size_t parts =
      rw.for_each("batch_norm_grad", [&](ir::NodeId, const Node& norm) { return take_two_parts(rw, norm); });
  return parts + rw.for_each("add", [&](ir::NodeId, const Node& sum) { return fuse_gradient_sum(rw, sum); });
}

size_t fuse_train_norms(ir::Graph& graph) {
  Rewriter rw(graph);
  const size_t rectified =
      rw.for_each("relu", [&](ir::NodeId, const Node& relu) { return fuse_relu(rw, relu); });
  return rectified + rw.for_each("add", [&](ir::NodeId, const Node& sum) { return fuse_sum(rw, sum); });
}

}  // namespace trireme::passes
