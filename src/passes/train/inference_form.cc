// Takes the training modes of batch norms and dropouts out of a graph.
#include "passes/train/inference_form.h"

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

bool plain_batch_norm(Rewriter& rw, const Node& node) {
  if (node.attrs.get_int("training_mode", 0) == 0) return false;
  if (reads_more_than_first(rw, node))
    base::fail_unsupported("batch norm '", node.from,
                           "' is in training mode, and its updated statistics are read");
  ir::Attrs attrs = node.attrs;
  attrs.erase("training_mode");
  rw.replace(node.out[0], rw.add("batch_norm", node.in, attrs, node.from));
  return true;
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

size_t to_inference(ir::Graph& graph) {
  Rewriter rw(graph);
  const size_t changed = rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "batch_norm") return plain_batch_norm(rw, node);
    return node.op_name() == "dropout" && plain_dropout(rw, node);
  });
  if (changed > 0) graph.sort();
  return changed;
}

}  // namespace trireme::passes
