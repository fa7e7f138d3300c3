// Takes the training modes of batch norms and dropouts out of a graph.
#include "passes/train/inference_form.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;

bool reads_more_than_first(const Rewriter& rw, const Node& node) {
  for (size_t i = 1; i < node.out.size(); ++i) {
    if (node.out[i] != ir::kNoValue && rw.uses(node.out[i]) > 0) return true;
  }
  return false;
}

bool is_in_training_mode(const Node& norm) { return norm.attrs.get_int("training_mode", 0) != 0; }

/// The kind of the value that identities hand on to an operand.
ir::ValueKind kind_behind(const ir::Graph& graph, ir::ValueId id) {
  for (const Node* node = graph.producer(id); node != nullptr && node->op_name() == "identity";
       node = graph.producer(id))
    id = node->in[0];
  return graph.value(id).kind;
}

bool has_running_statistics(const ir::Graph& graph, const Node& norm) {
  return kind_behind(graph, norm.in[3]) == ir::ValueKind::param &&
         kind_behind(graph, norm.in[4]) == ir::ValueKind::param;
}

/// Mean and (biased) variance of x over all axes but the channels'.
std::pair<ir::ValueId, ir::ValueId> batch_statistics(Rewriter& rw, const Node& norm) {
  const ir::ValueId x = norm.in[0];
  const tensor::Shape& shape = rw.graph().type(x).shape;
  if (!shape.has_rank() || shape.rank() < 2)
    base::fail_unsupported("batch norm '", norm.from, "' takes the statistics of its batch, but its operand ",
                           "is ", rw.graph().type(x).to_string(), ", whose channels are not known");
  std::vector<int64_t> all;
  for (size_t d = 0; d < shape.rank(); ++d) {
    if (d != 1) all.push_back(static_cast<int64_t>(d));
  }
  const ir::ValueId axes = rw.constant(
      tensor::Tensor::from<int64_t>({static_cast<int64_t>(all.size())}, std::span<const int64_t>(all)));
  const auto mean_of = [&](ir::ValueId value) {
    return rw.add("reduce_mean", {value, axes}, {{"keepdims", int64_t{1}}}, norm.from);
  };
  const auto flat = [&](ir::ValueId value) { return rw.add("squeeze", {value, axes}, {}, norm.from); };
  const ir::ValueId mean = mean_of(x);
  const ir::ValueId away = rw.add("sub", {x, mean}, {}, norm.from);
  return {flat(mean), flat(mean_of(rw.add("mul", {away, away}, {}, norm.from)))};
}

bool plain_batch_norm(Rewriter& rw, const Node& node) {
  if (reads_more_than_first(rw, node))
    base::fail_unsupported("batch norm '", node.from,
                           "' is in training mode, and its updated statistics are read");
  ir::Attrs attrs = node.attrs;
  attrs.erase("training_mode");
  std::vector<ir::ValueId> in = node.in;
  for (size_t i : {size_t{3}, size_t{4}}) {
    if (kind_behind(rw.graph(), in[i]) == ir::ValueKind::constant)
      base::fail_unsupported(
          "a running statistic of batch norm '", node.from, "', '", rw.graph().value(in[i]).name,
          "', is the tensor of a Constant node, which training does not change: make it ", "an initializer");
  }
  if (!has_running_statistics(rw.graph(), node)) std::tie(in[3], in[4]) = batch_statistics(rw, node);
  rw.replace(node.out[0], rw.add("batch_norm", std::move(in), attrs, node.from));
  return true;
}

/// A norm that is in inference mode in the file: the mark of fix_norm() stays on it, or goes.
bool mark_batch_norm(Node& norm, bool is_fixed) {
  const bool was_fixed = is_fixed_norm(norm);
  is_fixed ? fix_norm(norm) : norm.attrs.erase("training_mode");
  return is_fixed && !was_fixed;
}

bool plain_dropout(Rewriter& rw, const Node& node) {
  constexpr size_t kMode = 2;  // the operand that says whether elements are dropped
  if (!node.has_operand(kMode) || rw.is_scalar(node.in[kMode], 0)) return false;
  if (reads_more_than_first(rw, node))
    base::fail_unsupported("dropout '", node.from, "' is in training mode, and its mask is read");
  std::vector<ir::ValueId> in = node.in;
  in.resize(kMode);
  rw.replace(node.out[0], rw.add("dropout", std::move(in), node.attrs, node.from));
  return true;
}

}  // namespace

bool is_fixed_norm(const ir::Node& norm) {
  return norm.attrs.has("training_mode") && !is_in_training_mode(norm);
}

void fix_norm(ir::Node& norm) { norm.attrs.set("training_mode", int64_t{0}); }

bool states_trained_norms(const ir::Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& n) {
    return n.op != nullptr && n.op_name() == "batch_norm" && is_in_training_mode(n) &&
           has_running_statistics(graph, n);
  });
}

size_t to_inference(ir::Graph& graph) {
  const bool is_stated = states_trained_norms(graph);
  Rewriter rw(graph);
  const size_t changed = rw.for_each([&](ir::NodeId id, const Node& node) {
    if (node.op_name() == "dropout") return plain_dropout(rw, node);
    if (node.op_name() != "batch_norm") return false;
    if (is_in_training_mode(node)) return plain_batch_norm(rw, node);
    return mark_batch_norm(rw.graph().node(id), is_stated);
  });
  if (changed > 0) graph.sort();
  return changed;
}

}  // namespace trireme::passes
