// attention_bsnd_grad and attention_qkv_grad, with and without the gradient of the mask, and the gradient
// rules of attention that use them.
#include "ops/attention/attention_cuts.h"
#include "ops/attention/attention_forms.h"
#include "ops/attention/attention_plan.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

/// y and log-sum-exp of a node. A node without the latter is replaced by one that has it, so that attention
/// is computed only once.
struct Kept {
  ValueId y, lse;
};

Kept keep_log_sum_exp(GradBuilder& g, const ir::Node& node) {
  if (node.out.size() > 1 && node.out[1] != ir::kNoValue) return {node.out[0], node.out[1]};
  const auto results = g.ops(node.op_name(), node.in, node.attrs, 2);
  g.graph().replace_uses(node.out[0], results[0]);
  return {results[0], results[1]};
}

/// Gradient of the sinks [heads]: minus the sink's share of the softmax times <dy, y>, summed over batch and
/// queries.
ValueId sink_gradient(GradBuilder& g, const Kept& kept) {
  const ValueId sinks = g.in(kBsndSinks);
  ValueId product = g.mul(kept.y, g.grad());
  if (g.type(product).dtype != g.type(sinks).dtype) product = g.op("cast_like", {product, sinks});
  const ValueId delta = g.reduce_sum(product, {3}, false);  // [batch, queries, heads]
  const ValueId share = g.op("exp", {g.sub(sinks, g.transpose(kept.lse, {0, 2, 1}))});
  return g.neg(g.reduce_sum(g.reduce_sum(g.mul(share, delta), {1}, false), {0}, false));
}

/// One of the two forms: the names of its operators, and how many operands precede the mask.
struct Form {
  std::string_view forward, backward, with_mask;
  size_t operands;
  AttentionGradPlan (*plan)(const ir::NodeView&);
};
constexpr Form kBsnd{"attention_bsnd", "attention_bsnd_grad", "attention_bsnd_mask_grad", 3,
                     plan_attention_bsnd_grad};
constexpr Form kQkv{"attention_qkv", "attention_qkv_grad", "attention_qkv_mask_grad", 1,
                    plan_attention_qkv_grad};

/// The shape of the scores, [batch, heads, queries, keys].
tensor::Shape scores_of(const Form& form, const ir::NodeView& n) {
  const tensor::Shape &q = n.in[0].shape, &k = n.in[form.operands - 1].shape;
  if (form.operands == 1) return tensor::Shape{q[0], n.attrs.get_int("heads", 0), q[1], q[1]};
  return tensor::Shape{q[0], q[2], q[1], k[1]};
}

/// Whether a mask of these extents broadcasts to the scores; a shorter one hides all keys past its end.
bool is_whole(const tensor::Dims& mask, const tensor::Dims& scores) {
  return !mask.empty() && (mask.back() == 1 || mask.back() == scores.back());
}

/// A trained additive mask gets the scores' gradient, summed over the dimensions in which it was broadcast.
ir::GradFn fused_gradient(const Form& form) {
  return [form](ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) -> Gradients {
    GradBuilder g(graph, node, out_grads);
    const size_t operands = form.operands;
    base::require(g.grad(1) == ir::kNoValue,
                  "the log-sum-exp of attention is there for its backward pass only");
    Gradients out = g.none();
    const bool trains_mask =
        g.has(operands) && g.known(operands) == nullptr && tensor::is_float(g.type(g.in(operands)).dtype);
    const bool is_fused =
        trains_mask && is_whole(g.dims(g.in(operands)), scores_of(form, g.view()).to_dims());
    const bool has_sinks = operands == kBsndMask && g.has(kBsndSinks);
    if (trains_mask && has_sinks) base::fail_unsupported("attention with sinks and a mask that is trained");
    if (trains_mask && !is_fused) out[operands] = grad_by_expand()(graph, node, out_grads)[operands];
    const Kept kept = keep_log_sum_exp(g, node);
    std::vector<ValueId> in(node.in.begin(), node.in.begin() + static_cast<int64_t>(operands));
    in.insert(in.end(), {kept.y, kept.lse, g.grad()});
    if (g.has(operands)) in.push_back(g.in(operands));
    if (has_sinks) out[kBsndSinks] = sink_gradient(g, kept);
    const auto grads = g.ops(is_fused ? form.with_mask : form.backward, std::move(in), node.attrs,
                             operands + (is_fused ? 1 : 0));
    for (size_t i = 0; i < operands; ++i) out[i] = grads[i];
    if (is_fused) {
      ValueId mask = g.to_operand(grads[operands], operands);
      if (g.type(mask).dtype != g.type(g.in(operands)).dtype)
        mask = g.op("cast_like", {mask, g.in(operands)});
      out[operands] = mask;
    }
    return out;
  };
}

/// The backward pass, and the scores' gradient by way of the plain form with the mask broadcast beforehand.
std::vector<ValueId> expand_bsnd_mask_grad(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // adding nodes moves the original
  GradBuilder g(graph, node, {});
  std::vector<ValueId> results = g.ops(kBsnd.backward, node.in, node.attrs, kBsnd.operands);
  const ValueId mask = g.expand(node.in.back(), scores_of(kBsnd, g.view()).to_dims());
  const ValueId y = g.op(kBsnd.forward, {node.in[0], node.in[1], node.in[2], mask}, node.attrs);
  const ir::Node forward = *graph.producer(y);
  const ValueId dy = node.in[5];
  results.push_back(*grad_by_expand()(graph, forward, std::span(&dy, 1))[kBsnd.operands]);
  return results;
}

/// Cuts the packed projection in three and joins the gradients.
std::vector<ValueId> expand_qkv_mask_grad(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const AttentionPlan p = plan_attention_qkv_grad(g.view()).forward;
  const int64_t d = p.head_dim;
  const auto by_head = [&](ValueId x, int64_t heads) { return g.reshape(x, {p.batch, p.queries, heads, d}); };
  const ValueId sizes = g.ints({p.heads * d, p.kv_heads * d, p.kv_heads * d});
  const auto parts = g.ops("split", {node.in[0], sizes}, {{"axis", int64_t{2}}}, 3);
  const std::vector<ValueId> in{by_head(parts[0], p.heads),
                                by_head(parts[1], p.kv_heads),
                                by_head(parts[2], p.kv_heads),
                                by_head(node.in[1], p.heads),
                                node.in[2],
                                by_head(node.in[3], p.heads),
                                node.in[4]};
  ir::Attrs attrs = node.attrs;
  attrs.erase("heads");
  attrs.erase("kv_heads");
  const std::vector<ValueId> grads = g.ops(kBsnd.with_mask, in, attrs, 4);
  std::vector<ValueId> flat;
  for (size_t i = 0; i < 3; ++i)
    flat.push_back(g.reshape(grads[i], {p.batch, p.queries, (i == 0 ? p.heads : p.kv_heads) * d}));
  return {g.op("concat", flat, {{"axis", int64_t{2}}}), grads[3]};
}

ir::OpSchema with_mask_gradient(ir::OpSchema schema, const Form& form) {
  schema.name = form.with_mask;
  schema.doc = base::concat(form.backward,
                            " of a trained mask: its last result is the gradient of the scores, "
                            "[batch, heads, queries, keys]");
  schema.min_in = schema.max_in;
  schema.min_out = schema.max_out = form.operands + 1;
  schema.infer = [form](const ir::NodeView& n) {
    std::vector<tensor::TensorType> types(n.in.begin(), n.in.begin() + static_cast<int64_t>(form.operands));
    types.push_back({n.in[0].dtype, scores_of(form, n)});
    return types;
  };
  schema.expand = form.operands == 1 ? expand_qkv_mask_grad : expand_bsnd_mask_grad;
  schema.cost = [form](const ir::NodeView& n) { return attention_cost(n, form.plan(n).forward, 5, 30); };
  return schema;
}

}  // namespace

ir::GradFn attention_bsnd_gradient() { return fused_gradient(kBsnd); }
ir::GradFn attention_qkv_gradient() { return fused_gradient(kQkv); }

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

ir::OpSchema attention_bsnd_mask_grad_schema() {
  return with_mask_gradient(attention_bsnd_grad_schema(), kBsnd);
}

ir::OpSchema attention_qkv_mask_grad_schema() {
  return with_mask_gradient(attention_qkv_grad_schema(), kQkv);
}

}  // namespace trireme::ops
