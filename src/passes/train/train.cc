// From an inference graph to a training graph: training forms of ops, and the gradients of the loss.
#include "passes/train/train.h"

#include "ops/grad.h"
#include "ops/table.h"
#include "passes/precision/casts.h"
#include "passes/cleanup.h"
#include "passes/train/conv_bias_sums.h"
#include "passes/fuse/dense.h"
#include "passes/fuse/elementwise.h"
#include "passes/layout.h"
#include "passes/train/pool_gradients.h"
#include "passes/fuse/pooled_convs.h"
#include "passes/fuse/product_epilogues.h"
#include "passes/rewriter.h"
#include "passes/train/train_norms.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// dropout(x, ratio) -> dropout_train; `index` tells the dropouts of a graph apart.
bool train_dropout(Rewriter& rw, const Node& node, int64_t index) {
  constexpr double kDefaultRatio = 0.5;  // as ONNX has it
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

/// batch_norm(x, scale, bias, mean, var) -> batch_norm_train and the updates of both running statistics.
bool train_batch_norm(Rewriter& rw, const Node& node) {
  for (size_t i : {size_t{3}, size_t{4}}) {
    base::check(rw.graph().value(node.in[i]).kind == ir::ValueKind::state, "running statistic '",
                rw.graph().value(node.in[i]).name, "' of '", node.from, "' is no state");
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

}  // namespace

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

const std::vector<Pass>& forward_passes() {
  static const std::vector<Pass> list{
      {"train_noops", "removes nodes that change nothing", remove_noops},
      {"train_cse", "computes equal nodes once", merge_equal_nodes},
      {"train_activations", "gathers GELU, SiLU and hard-swish", gather_activations},
      {"train_norms", "gathers layer norm and RMS norm", gather_norms},
      {"train_softmax", "gathers softmax", gather_softmax},
      {"train_attention", "gathers attention", gather_attention},
      {"train_packed_attention", "attention reads the projection that q, k and v share", pack_attention},
      {"train_channels_last", "convolutions and pools in [n,h,w,c]", use_channels_last},
      {"train_sink", "moves layout changes down until they cancel", sink_transposes},
      {"train_batch_norms", "sums and rectifiers move into the batch norms before them", fuse_train_norms},
      {"train_linear", "products with weights", make_linear},
      {"train_bias", "biases move into products", fuse_biases},
      {"train_final_noops", "removes what the passes above left", remove_noops},
  };
  return list;
}

const std::vector<Pass>& step_passes(tensor::DeviceKind on) {
  const auto passes_for = [](bool is_cpu) {
    std::vector<Pass> list{
        {"step_noops", "removes nodes that change nothing", remove_noops},
        {"step_cse", "computes equal nodes once", merge_equal_nodes},
        {"step_norm_sums", "sums of gradients move into the norms before them", fuse_norm_gradient_sums},
        {"step_pools", "gradients of rectifiers move into those of the pools behind them",
         fuse_pool_gradients},
        {"step_epilogue", "activation and residual move into products and convolutions", fuse_epilogues}};
    if (is_cpu) {
      list.push_back(
          {"step_conv_biases", "gradients of biases move into those of weights", fuse_conv_bias_sums});
      list.push_back(
          {"step_pooled_convs", "maxima move into the convolutions before them", fuse_pooled_convs});
    }
    list.push_back({"step_fuse", "runs of elementwise nodes pass over memory once", fuse_elementwise});
    return list;
  };
  static const std::vector<Pass> cpu = passes_for(true), other = passes_for(false);
  return on == tensor::DeviceKind::cpu ? cpu : other;
}

const std::vector<Pass>& cast_passes(tensor::DeviceKind on) {
  static const std::vector<Pass> none,
      device{{"step_casts", "casts vanish into the kernels beside them",
              [](ir::Graph&graph) { return absorb_casts(graph, tensor::DeviceKind::cuda); }}};
  return on == tensor::DeviceKind::cpu ? none : device;
}

const std::vector<Pass>& program_passes(tensor::DeviceKind on) {
  static const std::vector<Pass> none,
      device{{"program_epilogue", "GELU and its gradient move into the products before them",
              finish_in_products}};
  return on == tensor::DeviceKind::cpu ? none : device;
}

std::vector<ParamGradient> differentiate(ir::Graph& graph, ValueId loss, const std::vector<ValueId>& params) {
  base::require(graph.type(loss).shape.is_static() && graph.type(loss).shape.elements() == 1, "the loss is ",
                graph.type(loss).to_string(), ", not a scalar");
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
