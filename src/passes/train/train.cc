// Turns an inference graph into a training graph: training forms of ops, and gradients of the loss.
#include "passes/train/train.h"

#include <algorithm>

#include "ops/grad.h"
#include "ops/table.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// dropout(x, ratio) -> dropout_train; `index` distinguishes the dropouts of a graph.
bool train_dropout(Rewriter& rw, const Node& node, int64_t index) {
  constexpr double kDefaultRatio = 0.5;  // ONNX's default
  const bool has_ratio = node.in.size() > 1 && node.in[1] != ir::kNoValue;
  const std::optional<double> ratio = has_ratio ? rw.scalar(node.in[1]) : std::optional(kDefaultRatio);
  base::require(ratio.has_value(), "dropout '", node.from, "': training needs a constant ratio");
  base::require(node.out.size() < 2 || node.out[1] == ir::kNoValue || rw.uses(node.out[1]) == 0, "dropout '",
                node.from, "': its mask is read, which training does not provide");
  if (*ratio == 0) {
    rw.replace(node.out[0], node.in[0]);
    return true;
  }
  const ValueId rng = need_input(rw.graph(), kRngInput, {tensor::DType::i64, {3}});
  rw.replace(node.out[0],
             rw.add("dropout_train", {node.in[0], rng}, {{"op", index}, {"ratio", *ratio}}, node.from));
  return true;
}

/// batch_norm(x, scale, bias, mean, var) -> batch_norm_train, plus updates of both running statistics, if
/// these are states. Others are fixed, or computed from the batch.
bool train_batch_norm(Rewriter& rw, const Node& node) {
  for (size_t i : {size_t{3}, size_t{4}}) {
    if (rw.graph().value(node.in[i]).kind != ir::ValueKind::state) return false;
  }
  const Node train{.op = nullptr,
                   .attrs = {{"axis", int64_t{1}}, {"epsilon", node.attrs.get_float("epsilon", 1e-5)}},
                   .in = {node.in[0], node.in[1], node.in[2]},
                   .out = {},
                   .from = node.from};
  const std::vector<ValueId> results = rw.add_all("batch_norm_train", train, 4);
  const ir::Attrs keep{{"keep", node.attrs.get_float("momentum", 0.9)}};
  rw.add("ema_update", {node.in[3], results[1]}, keep, node.from);
  rw.add("ema_update", {node.in[4], results[3]}, keep, node.from);
  rw.replace(node.out[0], results[0]);
  return true;
}

constexpr const char* kCut = "cut";
constexpr const char* kGradient = ".gradient";

}  // namespace

std::string crossing_name(size_t b, size_t i) { return base::concat(kCut, b, ".", i); }

std::string crossing_gradient(const std::string& value) { return value + kGradient; }

bool is_crossing_gradient(std::string_view name) {
  return name.starts_with(kCut) && name.ends_with(kGradient);
}

ValueId need_input(ir::Graph& graph, const std::string& name, tensor::TensorType type) {
  for (ValueId id : graph.inputs()) {
    if (graph.value(id).name == name) return id;
  }
  return graph.add_input(name, std::move(type));
}

size_t to_training(ir::Graph& graph) {
  Rewriter rw(graph);
  int64_t dropouts = 0;
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "dropout") return train_dropout(rw, node, dropouts++);
    return node.op_name() == "batch_norm" && train_batch_norm(rw, node);
  });
}

void number_masks(ir::Graph& graph, int64_t batch_rows) {
  if (batch_rows <= 0) return;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
    if (node.op == nullptr || node.op_name() != "dropout_train") continue;
    const tensor::Shape& x = graph.type(node.in[0]).shape;
    if (!x.has_rank() || x.rank() == 0 || x[0] != tensor::Dim(batch_rows)) node.attrs.set("rows", batch_rows);
  }
}

ValueId scalar_loss(ir::Graph& graph, ValueId loss) {
  const tensor::TensorType type = graph.type(loss);
  base::require(type.shape.is_static() && type.shape.elements() == 1, "the loss is ", type.to_string(),
                ", not a scalar");
  if (type.shape.rank() == 0) return loss;
  const Node* made = graph.producer(loss);
  const std::string from = made == nullptr ? "" : made->from;
  const ValueId scalar = graph.add1(ops::table().need("squeeze"), {loss}, {}, from);
  std::vector<ValueId> outputs = graph.outputs();
  std::replace(outputs.begin(), outputs.end(), loss, scalar);
  graph.set_outputs(std::move(outputs), graph.output_names());
  return scalar;
}

std::vector<ParamGradient> differentiate(ir::Graph& graph, ValueId loss, const std::vector<ValueId>& params) {
  loss = scalar_loss(graph, loss);
  const ValueId weight = need_input(graph, kLossWeightInput, {tensor::DType::f32, tensor::Shape{}});
  std::vector<char> wanted(graph.values().size(), 0);
  for (ValueId id : params) wanted[index(id)] = 1;
  std::vector<ValueId> grads(graph.values().size(), ir::kNoValue);
  grads[index(loss)] = weight;
  ops::backpropagate(graph, 0, wanted, grads);
  std::vector<ParamGradient> out;
  for (ValueId id : params) {
    if (grads[index(id)] != ir::kNoValue) out.push_back({id, grads[index(id)]});
  }
  return out;
}

}  // namespace trireme::passes
