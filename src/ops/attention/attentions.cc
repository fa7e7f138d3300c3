// attention (ONNX), attention_bsnd (operands in the layout of projections) and rotary_embedding: types and
// cost.
#include "ops/attention/attention_cuts.h"
#include "ops/attention/attention_forms.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/grad.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

/// attention_bsnd between reshapes or transposes. Throws unsupported for caches, key lengths and windows that
/// extend past the query.
std::vector<ir::ValueId> expand_attention(ir::Graph& graph, const ir::Node& node) {
  GradBuilder g(graph, node, {});
  if (node.attrs.get_int("right_window_size", -1) >= 0 || g.has(4) || g.has(6) || node.out.size() > 1)
    base::fail_unsupported("attention with a cache, a window to the right, key lengths or several results");
  const AttentionPlan p = plan_attention(graph.view(node));
  const bool flat = g.dims(g.in(0)).size() == 3;
  auto projection = [&](size_t i, int64_t heads) {
    const tensor::Dims d = g.dims(g.in(i));
    return flat ? g.reshape(g.in(i), {d[0], d[1], heads, d[2] / heads}) : g.transpose(g.in(i), {0, 2, 1, 3});
  };
  std::vector<ir::ValueId> in{projection(0, p.heads), projection(1, p.kv_heads), projection(2, p.kv_heads)};
  if (g.has(3)) {
    tensor::Dims mask = g.dims(g.in(3));
    if (mask.back() != p.keys()) base::fail_unsupported("attention with a mask shorter than the keys");
    mask.insert(mask.begin(), 4 - mask.size(), 1);
    in.push_back(g.reshape(g.in(3), mask));
  }
  ir::Attrs attrs{{"is_causal", node.attrs.get_int("is_causal", 0)}, {"scale", p.scale}};
  if (p.softcap > 0) attrs.set("softcap", p.softcap);
  if (p.left >= 0) attrs.set("left_window_size", p.left);
  const ir::ValueId y = g.op("attention_bsnd", std::move(in), attrs);
  return {flat ? g.reshape(y, g.dims(g.out())) : g.transpose(y, {0, 2, 1, 3})};
}

/// The expansion also replaces the node, so that the forward pass is computed only once.
Gradients attention_gradient(ir::Graph& graph, const ir::Node& node, std::span<const ir::ValueId> out_grads) {
  const size_t first = graph.nodes().size();
  const ir::ValueId y = expand_attention(graph, node)[0];
  graph.replace_uses(node.out[0], y);
  std::vector<char> wanted(graph.values().size(), 0);
  for (ir::ValueId id : node.in) {
    if (id != ir::kNoValue && tensor::is_float(graph.type(id).dtype)) wanted[index(id)] = 1;
  }
  std::vector<ir::ValueId> grads(graph.values().size(), ir::kNoValue);
  grads[index(y)] = out_grads[0];
  backpropagate(graph, first, std::move(wanted), grads);
  Gradients out(node.in.size());
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] != ir::kNoValue && grads[index(node.in[i])] != ir::kNoValue)
      out[i] = grads[index(node.in[i])];
  }
  return out;
}

ir::OpSchema attention() {
  return {.name = "attention",
          .doc =
              "y = softmax(scale q k^T + mask) v per head; operands q, k, v, mask, past_key, past_value, key "
              "lengths; "
              "results y, present_key, present_value, scores",
          .precision = attention_precision(3),
          .is_product = true,
          .cut = attention_cut,
          .localise = localise_attention,
          .min_in = 3,
          .max_in = 7,
          .max_out = 4,
          .attrs = {{"is_causal", "int", "a query sees the keys up to its own position"},
                    {"kv_num_heads", "int", "key heads of 3-D operands"},
                    {"left_window_size", "int", "keys before the query that it sees, -1: all"},
                    {"q_num_heads", "int", "query heads of 3-D operands"},
                    {"qk_matmul_output_mode", "int",
                     "fourth result: 0 scores, 1 capped, 2 masked, 3 probabilities"},
                    {"right_window_size", "int", "keys after the query that it sees, -1: all"},
                    {"scale", "float", "default 1 / sqrt(head_dim)"},
                    {"softcap", "float", "scores become cap tanh(score / cap); 0: off"},
                    {"softmax_precision", "int", "ONNX type of the softmax; at least f32 is always used"}},
          .infer = infer_attention,
          .expand = expand_attention,
          .cost = [](const ir::NodeView& n) { return attention_cost(n, plan_attention(n), 2, 20); },
          .grad = attention_gradient,
          .onnx = "Attention"};
}

/// Rotates dy by the negated angle. The tables of cosines and sines are not trained.
Gradients rotary_gradient(GradBuilder& g) {
  std::vector<ValueId> in{g.grad(), g.in(1), g.neg(g.in(2))};
  if (g.has(3)) in.push_back(g.in(3));
  Gradients out = g.none();
  out[0] = g.op("rotary_embedding", std::move(in), g.attrs());
  return out;
}

/// Tables [positions, channels / 2] indexed by `position_ids` [batch, seq], or [batch, seq, channels / 2].
std::vector<TensorType> infer_rotary(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &cosine = n.in[1].shape, &sine = n.in[2].shape;
  const int64_t heads = n.attrs.get_int("num_heads", 0), asked = n.attrs.get_int("rotary_embedding_dim", 0);
  base::require(!x.has_rank() || x.rank() == 4 || (x.rank() == 3 && heads > 0), "rotary_embedding of ",
                x.to_string());
  if (!x.is_static() || !cosine.is_static() || !sine.is_static()) return {n.in[0]};
  const bool flat = x.rank() == 3;
  base::require(!flat || x[2].value() % heads == 0, "rotary_embedding of ", x.to_string(), " with ", heads,
                " heads");
  const int64_t channels = flat ? x[2].value() / heads : x[3].value(),
                rotated = asked == 0 ? channels : asked;
  base::require(rotated >= 0 && rotated <= channels && rotated % 2 == 0, "rotary_embedding of ", rotated,
                " of ", channels, " channels");
  const Shape tokens{x[0], flat ? x[1] : x[2]};
  const bool is_found = n.present(3);
  const Shape want = is_found ? Shape{cosine.rank() > 0 ? cosine[0] : Dim(1), Dim(rotated / 2)}
                              : Shape{tokens[0], tokens[1], Dim(rotated / 2)};
  base::require(cosine == want && sine == want, "rotary caches of shapes ", cosine.to_string(), " and ",
                sine.to_string(), ", need ", want.to_string());
  if (!is_found) return {n.in[0]};
  base::require(!n.in[3].shape.is_static() || n.in[3].shape == tokens, "rotary position_ids of shape ",
                n.in[3].shape.to_string(), ", need ", tokens.to_string());
  base::require(cosine[0].value() > 0 || x.elements() == 0, "rotary caches hold no position");
  return {n.in[0]};
}

ir::OpSchema rotary_embedding() {
  return {.name = "rotary_embedding",
          .doc =
              "rotates pairs of channels of x by the angles of their position; operands x, cos, sin, "
              "position_ids",
          .precision = kRounds,
          .half_rows = {.operands = 0b1},
          .cut = rotary_cut,
          .localise = localise_rotary,
          .min_in = 3,
          .max_in = 4,
          .attrs = {{"interleaved", "int", "pairs are neighbours instead of halves"},
                    {"num_heads", "int", "heads of a 3-D operand"},
                    {"rotary_embedding_dim", "int", "channels that rotate, 0: all"}},
          .infer = infer_rotary,
          .grad = rule(rotary_gradient),
          .onnx = "RotaryEmbedding"};
}

}  // namespace

std::vector<ir::OpDef> attentions_ops() {
  return {{attention(), attention_cpu_kernels()},
          {attention_bsnd_schema(), attention_bsnd_cpu_kernels()},
          {attention_qkv_schema(), attention_qkv_cpu_kernels()},
          {attention_bsnd_grad_schema(), attention_bsnd_grad_cpu_kernels()},
          {attention_qkv_grad_schema(), attention_qkv_grad_cpu_kernels()},
          {attention_bsnd_mask_grad_schema(), attention_bsnd_mask_grad_cpu_kernels()},
          {attention_qkv_mask_grad_schema(), attention_qkv_mask_grad_cpu_kernels()},
          {rotary_embedding(), rotary_embedding_cpu_kernels()}};
}

}  // namespace trireme::ops
