// attention_bsnd_grad and attention_qkv_grad, and how the gradients of attention use them.
#include "ops/attention/attention_cuts.h"
#include "ops/attention/attention_forms.h"
#include "ops/attention/attention_plan.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

/// y and log-sum-exp of a node. A node that does not keep the latter is replaced by one that does, so that
/// nothing is computed twice.
struct Kept {
  ValueId y, lse;
};

Kept keep_log_sum_exp(GradBuilder& g, const ir::Node& node) {
  if (node.out.size() > 1 && node.out[1] != ir::kNoValue) return {node.out[0], node.out[1]};
  const auto results = g.ops(node.op_name(), node.in, node.attrs, 2);
  g.graph().replace_uses(node.out[0], results[0]);
  return {results[0], results[1]};
}

/// `operands`: how many come before the mask. The gradient of an additive mask goes through the plain form.
ir::GradFn fused_gradient(std::string_view backward, size_t operands) {
  return [backward, operands](ir::Graph& graph, const ir::Node& node,
                              std::span<const ValueId> out_grads) -> Gradients {
    GradBuilder g(graph, node, out_grads);
    base::require(g.grad(1) == ir::kNoValue,
                  "the log-sum-exp of attention is there for its backward pass only");
    Gradients out = g.none();
    const bool trains_mask =
        g.has(operands) && g.known(operands) == nullptr && tensor::is_float(g.type(g.in(operands)).dtype);
    if (trains_mask) out[operands] = grad_by_expand()(graph, node, out_grads)[operands];
    const Kept kept = keep_log_sum_exp(g, node);
    std::vector<ValueId> in(node.in.begin(), node.in.begin() + static_cast<int64_t>(operands));
    in.insert(in.end(), {kept.y, kept.lse, g.grad()});
    if (g.has(operands)) in.push_back(g.in(operands));
    const auto grads = g.ops(backward, std::move(in), node.attrs, operands);
    for (size_t i = 0; i < operands; ++i) out[i] = grads[i];
    return out;
  };
}

}  // namespace

ir::GradFn attention_bsnd_gradient() { return fused_gradient("attention_bsnd_grad", 3); }
ir::GradFn attention_qkv_gradient() { return fused_gradient("attention_qkv_grad", 1); }

ir::OpSchema attention_bsnd_grad_schema() {
  std::vector<ir::AttrSpec> attrs = attention_attrs();
  attrs.push_back({"kv_heads", "int", "as forward"});
  return {
      .name = "attention_bsnd_grad",
      .doc =
          "dq, dk, dv of attention_bsnd, probabilities computed again from its log-sum-exp; operands q, k, "
          "v, y, "
          "log-sum-exp, dy, mask",
      .cut = attention_bsnd_grad_cut,
      .localise = localise_bsnd,
      .min_in = 6,
      .max_in = 7,
      .min_out = 3,
      .max_out = 3,
      .attrs = std::move(attrs),
      .infer =
          [](const ir::NodeView& n) {
            return std::vector<tensor::TensorType>{n.in[0], n.in[1], n.in[2]};
          },
      .cost =
          [](const ir::NodeView& n) { return attention_cost(n, plan_attention_bsnd_grad(n).forward, 5, 30); },
      .why_no_grad = "second derivatives of attention are not kept"};
}

ir::OpSchema attention_qkv_grad_schema() {
  std::vector<ir::AttrSpec> attrs = attention_attrs();
  attrs.push_back({"heads", "int", "query heads"});
  attrs.push_back({"kv_heads", "int", "as forward"});
  return {
      .name = "attention_qkv_grad",
      .doc = "gradient of the packed projection of attention_qkv; operands qkv, y, log-sum-exp, dy, mask",
      .cut = attention_qkv_grad_cut,
      .localise = localise_qkv,
      .min_in = 4,
      .max_in = 5,
      .attrs = std::move(attrs),
      .infer = [](const ir::NodeView& n) { return std::vector<tensor::TensorType>{n.in[0]}; },
      .cost =
          [](const ir::NodeView& n) { return attention_cost(n, plan_attention_qkv_grad(n).forward, 5, 30); },
      .why_no_grad = "second derivatives of attention are not kept"};
}

}  // namespace trireme::ops
