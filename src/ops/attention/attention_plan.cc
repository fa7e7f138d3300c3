// The memory layout of an attention node's operands.
#include "ops/attention/attention_plan.h"

#include <cmath>

#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::DType;
using tensor::Shape;

/// Extents of one projection: [batch, heads, seq, channels] or [batch, seq, heads * channels].
struct Projection {
  int64_t batch, heads, seq, channels;
  HeadStrides strides;
};

Projection projection(const Dims& x, int64_t heads, std::string_view what) {
  if (x.size() == 4) return {x[0], x[1], x[2], x[3], {x[1] * x[2] * x[3], x[3], x[2] * x[3]}};
  base::require(x.size() == 3 && heads > 0 && x[2] % heads == 0, what, " of shape ", tensor::to_string(x),
                " with ", heads, " heads");
  return {x[0], heads, x[1], x[2] / heads, {x[1] * x[2], x[2], x[2] / heads}};
}

/// Strides of a mask of rank 1 to 4, aligned to the right of [batch, heads, queries, keys].
MaskStrides mask_strides(const Dims& mask, DType type) {
  base::require(mask.size() >= 1 && mask.size() <= 4, "attention mask of shape ", tensor::to_string(mask));
  const std::vector<int64_t> strides = broadcast_strides(mask, 4);
  return {.given = true,
          .keeps = type == DType::boolean,
          .batch = strides[0],
          .head = strides[1],
          .query = strides[2],
          .keys = mask.back()};
}

void check_mask(const Dims& mask, const AttentionPlan& p) {
  const Dims full{p.batch, p.heads, p.queries, p.keys()};
  for (size_t i = 0; i + 1 < mask.size(); ++i) {
    const int64_t want = full[4 - mask.size() + i];
    base::require(mask[i] == 1 || mask[i] == want, "attention mask of shape ", tensor::to_string(mask),
                  " for scores ", tensor::to_string(full));
  }
  base::require(mask.back() <= p.keys(), "attention mask has ", mask.back(), " keys of ", p.keys());
}

void check_together(const AttentionPlan& p) {
  base::require(p.kv_heads > 0 && p.heads % p.kv_heads == 0, p.heads, " query heads over ", p.kv_heads,
                " key heads");
}

Dim product_of(const Dim& a, int64_t factor) {
  if (!a.is_static()) return Dim::unknown();
  int64_t product = 0;
  base::require(!__builtin_mul_overflow(a.value(), factor, &product), "attention of ", factor, " heads of ",
                a.value());
  return Dim(product);
}

/// The heads of a projection: an axis in 4-D, an attribute in 3-D.
Dim heads_of(const Shape& x, const ir::Attrs& attrs, std::string_view name) {
  return x.rank() == 4 ? x[1] : Dim(attrs.get_int(name, 0));
}

Dim channels_of(const Shape& x, const Dim& heads) {
  if (x.rank() == 4) return x[3];
  if (!x[2].is_static() || !heads.is_static()) return Dim::unknown();
  base::require(heads.value() > 0 && x[2].value() % heads.value() == 0, "attention operand ", x.to_string(),
                " with ", heads.value(), " heads");
  return Dim(x[2].value() / heads.value());
}

Dim sum_of(const Dim& a, const Dim& b) {
  return a.is_static() && b.is_static() ? Dim(a.value() + b.value()) : Dim::unknown();
}

}  // namespace

AttentionPlan plan_attention(const ir::NodeView& node) {
  const ir::Attrs& a = node.attrs;
  const Projection q = projection(node.in_dims(0), a.get_int("q_num_heads", 0), "queries");
  const Projection k = projection(node.in_dims(1), a.get_int("kv_num_heads", 0), "keys");
  const Projection v = projection(node.in_dims(2), a.get_int("kv_num_heads", 0), "values");
  AttentionPlan p{.batch = q.batch, .heads = q.heads, .kv_heads = k.heads, .queries = q.seq};
  p.fresh = k.seq;
  p.head_dim = q.channels;
  p.value_dim = v.channels;
  base::require(k.batch == q.batch && v.batch == q.batch && k.channels == q.channels && v.seq == k.seq &&
                    v.heads == k.heads,
                "attention operands ", node.in[0].shape.to_string(), ", ", node.in[1].shape.to_string(), ", ",
                node.in[2].shape.to_string(), " do not fit together");
  p.q = q.strides;
  p.k = k.strides;
  p.v = v.strides;
  const int64_t s = p.queries, h = p.heads, d = p.value_dim;
  p.y = node.in_dims(0).size() == 4 ? HeadStrides{h * s * d, d, s * d} : HeadStrides{h * s * d, h * d, d};
  if (node.present(4)) {
    p.past = node.in_dims(4).at(2);
    base::require(node.in_dims(4) == Dims{p.batch, p.kv_heads, p.past, p.head_dim} && node.present(5) &&
                      node.in_dims(5) == Dims{p.batch, p.kv_heads, p.past, p.value_dim},
                  "attention cache of shape ", node.in[4].shape.to_string(), " does not fit");
  }
  if (node.present(3)) {
    p.mask = mask_strides(node.in_dims(3), node.in[3].dtype);
    check_mask(node.in_dims(3), p);
  }
  p.scale = a.has("scale") ? a.get_float("scale", 1) : 1 / std::sqrt(double(p.head_dim));
  p.softcap = a.get_float("softcap", 0);
  p.causal = a.get_int("is_causal", 0) != 0;
  p.causal_offset = p.past;
  p.left = a.get_int("left_window_size", -1);
  p.right = a.get_int("right_window_size", -1);
  p.qk_mode = a.get_int("qk_matmul_output_mode", 0);
  base::require(p.qk_mode >= 0 && p.qk_mode <= 3, "attention: qk_matmul_output_mode must be 0 to 3, got ",
                p.qk_mode);
  p.has_lengths = node.present(6);
  base::require(!p.has_lengths || node.in_dims(6) == Dims{p.batch},
                "key lengths are not one per batch entry");
  check_together(p);
  return p;
}

namespace {

/// Reads mask operand, scale, cap, causality and window, which are common to all channels-last forms.
void plan_scores(const ir::NodeView& node, AttentionPlan& p) {
  const size_t at = p.mask_operand;
  if (node.present(at)) {
    const Dims mask = node.in_dims(at);
    const bool is_float = tensor::is_float(node.in[at].dtype);
    if (!is_float && mask.size() == 2) {
      base::require(mask == Dims{p.batch, p.fresh}, "key padding mask of shape ", tensor::to_string(mask));
      p.mask = {.given = true, .keeps = true, .batch = mask[0] == 1 ? 0 : p.fresh, .keys = p.fresh};
    } else {
      p.mask = mask_strides(mask, node.in[at].dtype);
      p.mask.keeps = !is_float;
      check_mask(mask, p);
    }
  }
  p.scale = node.attrs.has("scale") ? node.attrs.get_float("scale", 1) : 1 / std::sqrt(double(p.head_dim));
  p.softcap = node.attrs.get_float("softcap", 0);
  p.causal = node.attrs.get_int("is_causal", 0) != 0;
  p.left = node.attrs.get_int("left_window_size", -1);
  p.gives_lse = true;
  check_together(p);
}

}  // namespace

AttentionPlan plan_attention_bsnd(const ir::NodeView& node, size_t mask_operand) {
  const Dims q = node.in_dims(0), k = node.in_dims(1), v = node.in_dims(2);
  AttentionPlan p{.batch = q[0], .heads = q[2], .kv_heads = k[2], .queries = q[1]};
  p.fresh = k[1];
  p.head_dim = q[3];
  p.value_dim = v[3];
  p.q = {q[1] * q[2] * q[3], q[2] * q[3], q[3]};
  p.k = {k[1] * k[2] * k[3], k[2] * k[3], k[3]};
  p.v = {v[1] * v[2] * v[3], v[2] * v[3], v[3]};
  p.y = {q[1] * q[2] * v[3], q[2] * v[3], v[3]};
  p.mask_operand = mask_operand;
  const int64_t kv_heads = node.attrs.get_int("kv_heads", 0);
  base::require(kv_heads == 0 || kv_heads == p.kv_heads, "keys have ", p.kv_heads, " heads, kv_heads is ",
                kv_heads);
  // The backward pass needs no sinks: they are contained in the result and the log-sum-exp.
  if (mask_operand == kBsndMask && node.present(kBsndSinks)) {
    p.sink_operand = kBsndSinks;
    base::require(node.in_dims(kBsndSinks) == Dims{p.heads}, "sinks ", node.in[kBsndSinks].to_string(),
                  " of ", p.heads, " heads");
  }
  plan_scores(node, p);
  return p;
}

AttentionPlan plan_attention_qkv(const ir::NodeView& node, size_t mask_operand) {
  const Dims qkv = node.in_dims(0);
  const int64_t heads = node.attrs.get_int("heads", 0), kv_heads = node.attrs.get_int("kv_heads", 0);
  const int64_t kv = kv_heads == 0 ? heads : kv_heads;
  base::require(qkv.size() == 3 && heads > 0 && kv > 0 && qkv[2] % (heads + 2 * kv) == 0,
                "attention_qkv of shape ", tensor::to_string(qkv), " with ", heads, " heads over ", kv);
  AttentionPlan p{.batch = qkv[0], .heads = heads, .kv_heads = kv, .queries = qkv[1]};
  p.fresh = qkv[1];
  p.head_dim = p.value_dim = qkv[2] / (heads + 2 * kv);
  p.q = p.k = p.v = {qkv[1] * qkv[2], qkv[2], p.head_dim};
  p.y = {qkv[1] * heads * p.head_dim, heads * p.head_dim, p.head_dim};
  p.operand = {0, 0, 0};
  p.offset = {0, heads * p.head_dim, (heads + kv) * p.head_dim};
  p.mask_operand = mask_operand;
  plan_scores(node, p);
  return p;
}

AttentionGradPlan plan_attention_bsnd_grad(const ir::NodeView& node) {
  return {plan_attention_bsnd(node, 6), 3, 4, 5, {0, 1, 2}};
}

AttentionGradPlan plan_attention_qkv_grad(const ir::NodeView& node) {
  return {plan_attention_qkv(node, 4), 1, 2, 3, {0, 0, 0}};
}

ir::Refusal refuse_mixed(const ir::NodeView& node, std::initializer_list<size_t> operands) {
  for (size_t i : operands) {
    if (node.in[i].dtype != node.in[0].dtype)
      return base::concat("operand ", i, " has another type than the queries");
  }
  return std::nullopt;
}

std::vector<tensor::TensorType> infer_attention(const ir::NodeView& n) {
  const Shape &q = n.in[0].shape, &k = n.in[1].shape, &v = n.in[2].shape;
  const DType type = n.in[0].dtype;
  for (size_t i = 0; i < 3; ++i)
    base::require(tensor::is_float(n.in[i].dtype), "attention operand ", i, " is ", name_of(n.in[i].dtype));
  if (!q.has_rank() || !k.has_rank() || !v.has_rank()) {
    return {{type, Shape::unknown_rank()},
            {n.in[1].dtype, Shape::unknown(4)},
            {n.in[2].dtype, Shape::unknown(4)},
            {type, Shape::unknown(4)}};
  }
  base::require((q.rank() == 3 || q.rank() == 4) && k.rank() == q.rank() && v.rank() == q.rank(),
                "attention operands ", q.to_string(), ", ", k.to_string(), ", ", v.to_string());
  const bool flat = q.rank() == 3;
  const Dim heads = heads_of(q, n.attrs, "q_num_heads"), kv_heads = heads_of(k, n.attrs, "kv_num_heads");
  const Dim d = channels_of(k, kv_heads), dv = channels_of(v, kv_heads);
  const Dim queries = flat ? q[1] : q[2], fresh = flat ? k[1] : k[2];
  Dim keys = fresh;
  if (n.present(4)) {
    const Shape& past = n.in[4].shape;
    base::require(!past.has_rank() || past.rank() == 4, "attention cache of shape ", past.to_string());
    keys = past.has_rank() ? sum_of(past[2], fresh) : Dim::unknown();
  }
  Dim width = Dim::unknown();
  if (flat && heads.is_static()) width = product_of(dv, heads.value());
  const Shape y = flat ? Shape{q[0], queries, width} : Shape{q[0], heads, queries, dv};
  bool all_static = true;
  for (size_t i = 0; i < n.in.size(); ++i)
    all_static = all_static && (!n.present(i) || n.in[i].shape.is_static());
  if (all_static) plan_attention(n);  // checks the node
  return {{type, y},
          {n.in[1].dtype, Shape{q[0], kv_heads, keys, d}},
          {n.in[2].dtype, Shape{q[0], kv_heads, keys, dv}},
          {type, Shape{q[0], heads, queries, keys}}};
}

}  // namespace trireme::ops
