// attention (ONNX), attention_bsnd (projections as they lie) and rotary_embedding: types and cost.
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

/// Both products and 20 flop per score; operands and results once.
ir::Cost cost_of_plan(const ir::NodeView& n, const AttentionPlan& p) {
  ir::Cost cost;
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (n.present(i)) cost.bytes += static_cast<double>(tensor::bytes_of(n.in[i]));
  }
  for (const TensorType& t : n.out) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  const double scores = double(p.batch) * double(p.heads) * double(p.queries) * double(p.keys());
  cost.flop = scores * (2.0 * double(p.head_dim + p.value_dim) + 20.0);
  return cost;
}

ir::OpSchema attention() {
  return {.name = "attention",
          .doc =
              "y = softmax(scale q k^T + mask) v per head; operands q, k, v, mask, past_key, past_value, key "
              "lengths; "
              "results y, present_key, present_value, scores",
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
          .cost = [](const ir::NodeView& n) { return cost_of_plan(n, plan_attention(n)); },
          .onnx = "Attention"};
}

std::vector<TensorType> infer_bsnd(const ir::NodeView& n) {
  const Shape &q = n.in[0].shape, &k = n.in[1].shape, &v = n.in[2].shape;
  if (!q.has_rank() || !v.has_rank()) return {{n.in[0].dtype, Shape::unknown(4)}};
  base::require(q.rank() == 4 && v.rank() == 4 && (!k.has_rank() || k.rank() == 4),
                "attention_bsnd takes 4-D operands, got ", q.to_string(), ", ", k.to_string(), ", ",
                v.to_string());
  if (q.is_static() && k.is_static() && v.is_static()) {
    base::require(k[0] == q[0] && v[0] == q[0] && k[3] == q[3] && v[1] == k[1] && v[2] == k[2],
                  "attention operands ", q.to_string(), ", ", k.to_string(), ", ", v.to_string(),
                  " do not fit together");
    if (!n.present(3) || n.in[3].shape.is_static()) plan_attention_bsnd(n);
  }
  return {{n.in[0].dtype, Shape{q[0], q[1], q[2], v[3]}}};
}

/// transpose, ONNX attention on [batch, heads, seq, channels], transpose back.
std::vector<ir::ValueId> expand_bsnd(ir::Graph& g, const ir::Node& node) {
  const ir::Attrs swap{{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  std::vector<ir::ValueId> in;
  for (size_t i = 0; i < 3; ++i) in.push_back(g.add1(table().need("transpose"), {node.in[i]}, swap));
  if (node.in.size() > 3 && node.in[3] != ir::kNoValue) {
    ir::ValueId mask = node.in[3];
    if (!tensor::is_float(g.type(mask).dtype)) {
      if (g.type(mask).dtype != DType::boolean) {
        mask = g.add1(table().need("cast"), {mask}, {{"to", int64_t{9}}});  // 9: boolean
      }
      if (g.type(mask).shape.rank() == 2) {
        const ir::ValueId axes = g.add_constant(tensor::Tensor::from<int64_t>({2}, {1, 2}));
        mask = g.add1(table().need("unsqueeze"), {mask, axes});
      }
    }
    in.push_back(mask);
  }
  ir::Attrs attrs{{"is_causal", node.attrs.get_int("is_causal", 0)}};
  if (node.attrs.has("scale")) attrs.set("scale", node.attrs.get_float("scale", 1));
  const ir::ValueId y = g.add1(table().need("attention"), in, attrs);
  return {g.add1(table().need("transpose"), {y}, swap)};
}

ir::OpSchema attention_bsnd() {
  return {.name = "attention_bsnd",
          .doc =
              "y = softmax(scale q k^T + mask) v; q, k, v [batch, seq, heads, head_dim]; mask additive f32 "
              "broadcasting "
              "to [batch, heads, query, key], or boolean/integer [batch, key] (non-zero keeps)",
          .min_in = 3,
          .max_in = 4,
          .attrs = {{"is_causal", "int", "query i sees keys 0 .. i"},
                    {"kv_heads", "int", "heads of k and v, which divide those of q; 0: as k has them"},
                    {"scale", "float", "default 1 / sqrt(head_dim)"}},
          .infer = infer_bsnd,
          .expand = expand_bsnd,
          .cost = [](const ir::NodeView& n) { return cost_of_plan(n, plan_attention_bsnd(n)); }};
}

ir::OpSchema rotary_embedding() {
  return {.name = "rotary_embedding",
          .doc =
              "rotates pairs of channels of x by the angles of their position; operands x, cos, sin, "
              "position_ids",
          .min_in = 3,
          .max_in = 4,
          .attrs = {{"interleaved", "int", "pairs are neighbours instead of halves"},
                    {"num_heads", "int", "heads of a 3-D operand"},
                    {"rotary_embedding_dim", "int", "channels that rotate, 0: all"}},
          .infer =
              [](const ir::NodeView& n) {
                const Shape& x = n.in[0].shape;
                base::require(
                    !x.has_rank() || x.rank() == 4 || (x.rank() == 3 && n.attrs.get_int("num_heads", 0) > 0),
                    "rotary_embedding of ", x.to_string());
                return std::vector{n.in[0]};
              },
          .onnx = "RotaryEmbedding"};
}

}  // namespace

std::vector<ir::OpDef> attentions_ops() {
  return {{attention(), attention_cpu_kernels()},
          {attention_bsnd(), attention_bsnd_cpu_kernels()},
          {rotary_embedding(), rotary_embedding_cpu_kernels()}};
}

}  // namespace trireme::ops
