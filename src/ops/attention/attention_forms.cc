// attention_bsnd (operands in the layout of projections) and attention_qkv (one packed projection): types,
// cost, expansion into plain operators.
#include "ops/attention/attention_forms.h"

#include <algorithm>
#include <limits>

#include "ops/attention/attention_cuts.h"
#include "ops/attention/attention_plan.h"
#include "ops/grad.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;
using tensor::TensorType;

DType lse_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

std::vector<TensorType> infer_bsnd(const ir::NodeView& n) {
  const Shape &q = n.in[0].shape, &k = n.in[1].shape, &v = n.in[2].shape;
  const DType type = n.in[0].dtype;
  base::require(tensor::is_float(type), "attention of ", name_of(type));
  if (n.present(kBsndSinks))
    base::require(n.in[kBsndSinks].dtype == lse_type(type) &&
                      (!n.in[kBsndSinks].shape.has_rank() || n.in[kBsndSinks].shape.rank() == 1),
                  "sinks are ", name_of(lse_type(type)), " [heads], not ", n.in[kBsndSinks].to_string());
  if (!q.has_rank() || !v.has_rank()) return {{type, Shape::unknown(4)}, {lse_type(type), Shape::unknown(3)}};
  base::require(q.rank() == 4 && v.rank() == 4 && (!k.has_rank() || k.rank() == 4),
                "attention_bsnd takes 4-D operands, got ", q.to_string(), ", ", k.to_string(), ", ",
                v.to_string());
  if (q.is_static() && k.is_static() && v.is_static()) {
    base::require(k[0] == q[0] && v[0] == q[0] && k[3] == q[3] && v[1] == k[1] && v[2] == k[2],
                  "attention operands ", q.to_string(), ", ", k.to_string(), ", ", v.to_string(),
                  " do not fit together");
    if (!n.present(3) || n.in[3].shape.is_static()) plan_attention_bsnd(n);
  }
  return {{type, Shape{q[0], q[1], q[2], v[3]}}, {lse_type(type), Shape{q[0], q[2], q[1]}}};
}

std::vector<TensorType> infer_qkv(const ir::NodeView& n) {
  const Shape& qkv = n.in[0].shape;
  const DType type = n.in[0].dtype;
  if (!qkv.has_rank()) return {{type, Shape::unknown(3)}, {lse_type(type), Shape::unknown(3)}};
  base::require(qkv.rank() == 3, "attention_qkv takes [batch, seq, channels], got ", qkv.to_string());
  const int64_t heads = n.attrs.get_int("heads", 0), kv = n.attrs.get_int("kv_heads", 0);
  const int64_t parts = heads + 2 * (kv == 0 ? heads : kv);
  base::require(heads > 0, "attention_qkv without heads");
  if (qkv.is_static() && (!n.present(1) || n.in[1].shape.is_static())) plan_attention_qkv(n);
  const Dim channels = qkv[2].is_static() ? Dim(qkv[2].value() / parts * heads) : Dim::unknown();
  return {{type, Shape{qkv[0], qkv[1], channels}}, {lse_type(type), Shape{qkv[0], Dim(heads), qkv[1]}}};
}

/// Applies a mask, additive or boolean (kept keys), to scores [batch, heads, queries, keys].
ValueId masked(GradBuilder& g, ValueId scores, ValueId mask) {
  if (tensor::is_float(g.type(mask).dtype)) return g.add(scores, mask);
  if (g.type(mask).dtype != DType::boolean) mask = g.op("cast", {mask}, {{"to", int64_t{9}}});  // 9: boolean
  const Dims dims = g.dims(mask);
  if (dims.size() == 2) mask = g.reshape(mask, {dims[0], 1, 1, dims[1]});
  return g.op("where", {mask, scores, g.scalar(-std::numeric_limits<double>::infinity(), scores)});
}

/// Mask [queries, keys]: 0 where causality and the window let query i see key j, else -inf.
ValueId place_mask(GradBuilder& g, const AttentionPlan& p, ValueId like) {
  Tensor mask = Tensor::zeros(DType::f32, {p.queries, p.keys()});
  const auto m = mask.mutable_data<float>();
  for (int64_t i = 0; i < p.queries; ++i) {
    for (int64_t j = 0; j < p.keys(); ++j) {
      const bool is_hidden = (p.causal && j > i) || (p.left >= 0 && i - j > p.left);
      if (is_hidden) m[static_cast<size_t>(i * p.keys() + j)] = -std::numeric_limits<float>::infinity();
    }
  }
  const auto onnx_type = [](DType t) { return int64_t{t == DType::f64 ? 11 : t == DType::f16 ? 10 : 16}; };
  const DType type = g.type(like).dtype;
  const ValueId constant = g.constant(std::move(mask));
  return type == DType::f32 ? constant : g.op("cast", {constant}, {{"to", onnx_type(type)}});
}

/// With open extents, expands to the general operator, which exists in ONNX. Its layout has heads first, and
/// a mask of kept keys [batch, keys] becomes boolean over [batch, 1, queries, keys].
std::vector<ValueId> expand_open_bsnd(GradBuilder& g, const ir::Node& node) {
  if (g.has(kBsndSinks)) base::fail_unsupported("attention with sinks over open extents");
  std::vector<ValueId> in;
  for (size_t i = 0; i < 3; ++i) in.push_back(g.transpose(g.in(i), {0, 2, 1, 3}));
  if (g.has(3)) {
    ValueId mask = g.in(3);
    if (!tensor::is_float(g.type(mask).dtype)) {
      if (g.type(mask).dtype != DType::boolean)
        mask = g.op("cast", {mask}, {{"to", int64_t{9}}});  // 9: boolean
      if (g.type(mask).shape.rank() == 2) {
        // ONNX lets a mask broadcast over queries but ONNX Runtime does not, hence [batch, 1, queries, keys].
        mask = g.op("unsqueeze", {mask, g.ints({1, 2})});
        const ValueId queries = g.op("shape", {g.in(0)}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
        const ValueId shape = g.op("concat", {g.ints({1, 1}), queries, g.ints({1})}, {{"axis", int64_t{0}}});
        mask = g.op("expand", {mask, shape});
      }
    }
    in.push_back(mask);
  }
  ir::Attrs attrs;
  attrs.set("is_causal", node.attrs.get_int("is_causal", 0));
  for (const char* name : {"scale", "softcap", "left_window_size"}) {
    if (const auto* value = node.attrs.find(name)) attrs.set(name, *value);
  }
  base::require(node.out.size() == 1, "attention over open extents gives no log-sum-exp");
  return {g.transpose(g.op("attention", in, attrs), {0, 2, 1, 3})};
}

/// Turns y [batch, queries, heads, channels] and masked scores [batch, heads, queries, keys], both without
/// sinks, into the results with sinks: y times the keys' share of the sum of all exponentials.
std::vector<ValueId> with_sinks(GradBuilder& g, ValueId y, ValueId scores, size_t results) {
  ValueId lse = g.op("reduce_log_sum_exp", {scores, g.ints({3})}, {{"keepdims", int64_t{0}}});
  if (g.type(lse).dtype != g.type(g.in(kBsndSinks)).dtype)
    lse = g.op("cast_like", {lse, g.in(kBsndSinks)});  // [batch, heads, queries]
  const int64_t heads = g.dims(lse)[1];
  const ValueId over = g.sub(lse, g.reshape(g.in(kBsndSinks), {heads, 1}));
  ValueId share = g.op("unsqueeze", {g.transpose(g.op("sigmoid", {over}), {0, 2, 1}), g.ints({3})});
  if (g.type(share).dtype != g.type(y).dtype) share = g.op("cast_like", {share, y});
  std::vector<ValueId> out{g.mul(y, share)};
  // log(e^lse + e^sink)
  if (results > 1) out.push_back(g.add(g.op("softplus", {over}), g.reshape(g.in(kBsndSinks), {heads, 1})));
  return out;
}

/// The plain form: product, softmax, product. A query that sees no key gives 0.
std::vector<ValueId> expand_bsnd(ir::Graph& graph, const ir::Node& node) {
  GradBuilder g(graph, node, {});
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (g.has(i) && !g.type(g.in(i)).shape.is_static()) return expand_open_bsnd(g, node);
  }
  const AttentionPlan p = plan_attention_bsnd(graph.view(node));
  const int64_t group = p.heads / p.kv_heads;
  auto by_head = [&](size_t i, int64_t heads, int64_t shared) {
    const Dims d = g.dims(g.in(i));
    return g.reshape(g.transpose(g.in(i), {0, 2, 1, 3}), {d[0], heads / shared, shared, d[1], d[3]});
  };
  const ValueId q = by_head(0, p.heads, group), k = by_head(1, p.kv_heads, 1), v = by_head(2, p.kv_heads, 1);
  ValueId scores = g.scaled(g.op("batched_gemm", {q, k}, {{"transB", int64_t{1}}}), p.scale);
  scores = g.reshape(scores, {p.batch, p.heads, p.queries, p.keys()});
  if (p.softcap > 0) scores = g.scaled(g.op("tanh", {g.scaled(scores, 1 / p.softcap)}), p.softcap);
  if (g.has(3)) scores = masked(g, scores, g.in(3));
  if (p.causal || p.left >= 0) scores = g.add(scores, place_mask(g, p, scores));
  const bool hides = g.has(3) || p.left >= 0;
  const ValueId seen = hides ? g.op("greater", {scores, g.scalar(-1e30, scores)}) : ir::kNoValue;
  if (hides) scores = g.op("where", {seen, scores, g.scalar(-1e30, scores)});
  ValueId prob = g.op("softmax", {scores}, {{"axis", int64_t{-1}}});
  if (hides) prob = g.op("where", {seen, prob, g.scalar(0, prob)});
  prob = g.reshape(prob, {p.batch, p.kv_heads, group, p.queries, p.keys()});
  const ValueId y = g.reshape(g.op("batched_gemm", {prob, v}), {p.batch, p.heads, p.queries, p.value_dim});
  std::vector<ValueId> results{g.transpose(y, {0, 2, 1, 3})};
  if (g.has(kBsndSinks)) return with_sinks(g, results[0], scores, node.out.size());
  if (node.out.size() > 1) {
    const ValueId lse = g.op("reduce_log_sum_exp", {scores, g.ints({3})}, {{"keepdims", int64_t{0}}});
    const bool is_half = g.type(lse).dtype == DType::f16 || g.type(lse).dtype == DType::bf16;
    results.push_back(is_half ? g.op("cast", {lse}, {{"to", int64_t{1}}}) : lse);  // 1: f32
  }
  return results;
}

/// Cuts the packed projection in three, runs attention_bsnd and joins the heads.
std::vector<ValueId> expand_qkv(ir::Graph& graph, const ir::Node& node) {
  GradBuilder g(graph, node, {});
  const AttentionPlan p = plan_attention_qkv(graph.view(node));
  const int64_t d = p.head_dim;
  const ValueId sizes = g.ints({p.heads * d, p.kv_heads * d, p.kv_heads * d});
  const auto parts = g.ops("split", {g.in(0), sizes}, {{"axis", int64_t{2}}}, 3);
  std::vector<ValueId> in{g.reshape(parts[0], {p.batch, p.queries, p.heads, d})};
  for (size_t i : {1, 2}) in.push_back(g.reshape(parts[i], {p.batch, p.queries, p.kv_heads, d}));
  if (g.has(1)) in.push_back(g.in(1));
  ir::Attrs attrs = node.attrs;
  attrs.erase("heads");
  attrs.erase("kv_heads");
  std::vector<ValueId> results = g.ops("attention_bsnd", in, attrs, node.out.size());
  results[0] = g.reshape(results[0], {p.batch, p.queries, p.heads * d});
  return results;
}

}  // namespace

std::vector<ir::AttrSpec> attention_attrs() {
  return {{"is_causal", "int", "query i sees keys 0 .. i"},
          {"left_window_size", "int", "keys before the query that it sees, -1: all"},
          {"scale", "float", "default 1 / sqrt(head_dim)"},
          {"softcap", "float", "scores become cap tanh(score / cap); 0: off"}};
}

ir::Cost attention_cost(const ir::NodeView& n, const AttentionPlan& p, double products, double other) {
  ir::Cost cost;
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (n.present(i)) cost.bytes += static_cast<double>(tensor::bytes_of(n.in[i]));
  }
  for (const TensorType& t : n.out) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  double visible = double(p.queries) * double(p.keys());
  if (p.causal || p.left >= 0) {
    visible = 0;
    for (int64_t i = 0; i < p.queries; ++i) {
      const int64_t own = i + p.causal_offset;
      const int64_t last = p.causal ? std::clamp<int64_t>(own + 1, 0, p.keys()) : p.keys();
      visible += double(std::max<int64_t>(0, p.left < 0 ? last : last - std::max<int64_t>(0, own - p.left)));
    }
  }
  const double per_score = products * double(p.head_dim + p.value_dim) + other;
  cost.flop = double(p.batch) * double(p.heads) * visible * per_score;
  return cost;
}

ir::OpSchema attention_bsnd_schema() {
  std::vector<ir::AttrSpec> attrs = attention_attrs();
  attrs.push_back({"kv_heads", "int", "heads of k and v, which divide those of q; 0: as k has them"});
  return {
      .name = "attention_bsnd",
      .doc =
          "y = softmax(scale q k^T + mask) v, scores capped where softcap is set; q, k, v [batch, seq, "
          "heads, head_dim]; mask additive "
          "broadcasting "
          "to [batch, heads, query, key], or boolean/integer [batch, key] (non-zero keeps); second result: "
          "log-sum-exp of the scores [batch, heads, query]; sinks [heads]: one more score of each head, "
          "which takes "
          "its share of the softmax and has no value",
      .precision = attention_precision(3),
      .is_product = true,
      .cut = attention_bsnd_cut,
      .localise = localise_bsnd,
      .min_in = 3,
      .max_in = 5,
      .max_out = 2,
      .attrs = std::move(attrs),
      .infer = infer_bsnd,
      .expand = expand_bsnd,
      .cost = [](const ir::NodeView& n) { return attention_cost(n, plan_attention_bsnd(n), 2, 20); },
      .grad = attention_bsnd_gradient()};
}

ir::OpSchema attention_qkv_schema() {
  std::vector<ir::AttrSpec> attrs = attention_attrs();
  attrs.push_back({"heads", "int", "query heads"});
  attrs.push_back({"kv_heads", "int", "key heads, which divide the query heads; 0: as many"});
  return {.name = "attention_qkv",
          .doc =
              "attention_bsnd of one projection [batch, seq, (heads + 2 kv_heads) * head_dim] that holds q, "
              "k and v "
              "side by side; y [batch, seq, heads * head_dim]; operands qkv, mask",
          .precision = attention_precision(1),
          .is_product = true,
          .cut = attention_qkv_cut,
          .localise = localise_qkv,
          .min_in = 1,
          .max_in = 2,
          .max_out = 2,
          .attrs = std::move(attrs),
          .infer = infer_qkv,
          .expand = expand_qkv,
          .cost = [](const ir::NodeView& n) { return attention_cost(n, plan_attention_qkv(n), 2, 20); },
          .grad = attention_qkv_gradient()};
}

}  // namespace trireme::ops
