// softmax(q k' * scale + mask) v, written out or as ONNX Attention, gathered into attention_bsnd.
#include <algorithm>

#include "passes/rewriter.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// A value divided or multiplied by constants on its way: scale * value.
struct Scaled {
  double scale = 1;
  ValueId value;
};

Scaled strip_scale(const Rewriter& rw, ValueId id) {
  Scaled s{1, id};
  while (rw.single_use(s.value)) {
    if (const auto mul = rw.producer(s.value, "mul")) {
      const auto parts = rw.scalar_operand(*mul);
      if (!parts) break;
      s.scale *= parts->first;
      s.value = parts->second;
    } else if (const auto div = rw.producer(s.value, "div"); div && rw.scalar(div->in[1])) {
      s.scale /= *rw.scalar(div->in[1]);
      s.value = div->in[0];
    } else {
      break;
    }
  }
  return s;
}

/// x of transpose(x, perm).
std::optional<ValueId> untransposed(const Rewriter& rw, ValueId id, const std::vector<int64_t>& perm) {
  const auto t = rw.producer(id, "transpose");
  if (!t || t->attrs.get_ints("perm") != perm) return std::nullopt;
  return t->in[0];
}

struct Match {
  ValueId q, k, v;
  ValueId mask = ir::kNoValue;
  double scale = 1;
};

/// softmax's argument: [scale *] q k' [+ mask]; q and k in head-major order, or of rank 3 without heads.
bool match_scores(const Rewriter& rw, ValueId scores, Match& m) {
  if (const auto add = rw.producer(scores, "add"); add && rw.single_use(scores)) {
    for (size_t side : {size_t{0}, size_t{1}}) {
      const Scaled inner = strip_scale(rw, add->in[side]);
      if (!rw.producer(inner.value, "matmul") || !rw.single_use(inner.value)) continue;
      const auto shape = rw.dims(add->in[side]), mask_shape = rw.dims(add->in[1 - side]);
      if (!mask_shape || mask_shape->size() > 4 || rw.dims(add->out[0]) != shape) continue;
      m.mask = add->in[1 - side];
      scores = add->in[side];
      break;
    }
  }
  const Scaled s = strip_scale(rw, scores);
  const auto product = rw.producer(s.value, "matmul");
  if (!product || !rw.single_use(s.value)) return false;
  const Scaled q = strip_scale(rw, product->in[0]), k = strip_scale(rw, product->in[1]);
  const bool has_heads = rw.dims(s.value)->size() == 4;
  const auto q_lies = has_heads ? untransposed(rw, q.value, {0, 2, 1, 3}) : q.value;
  const auto k_lies =
      untransposed(rw, k.value, has_heads ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 2, 1});
  if (!q_lies || !k_lies) return false;
  m.q = *q_lies;
  m.k = *k_lies;
  m.scale = s.scale * q.scale * k.scale;
  return true;
}

/// Matrix products broadcast batches and heads; attention takes one batch, and heads shared by all or by
/// none.
bool heads_fit(const Rewriter& rw, const Match& m) {
  const tensor::Dims q = *rw.dims(m.q), k = *rw.dims(m.k), v = *rw.dims(m.v);
  return q[0] == k[0] && k[0] == v[0] && k[2] == v[2] && k[1] == v[1] && (q[2] == k[2] || k[2] == 1);
}

bool is_f32(const Rewriter& rw, ValueId id, size_t rank) {
  const auto dims = rw.dims(id);
  return dims && dims->size() == rank && rw.graph().type(id).dtype == tensor::DType::f32;
}

ValueId reshaped(Rewriter& rw, ValueId id, const tensor::Dims& dims, const std::string& from) {
  const auto rank = static_cast<int64_t>(dims.size());
  const ValueId shape =
      rw.constant(tensor::Tensor::from<int64_t>({rank}, std::span<const int64_t>(dims.data(), dims.size())));
  return rw.add("reshape", {id, shape}, {}, from);
}

/// Mask of rank up to 4 with leading ones, so that it is [batch, heads, queries, keys].
ValueId wide_mask(Rewriter& rw, ValueId mask, const std::string& from) {
  tensor::Dims wide = *rw.dims(mask);
  if (wide.size() == 4) return mask;
  wide.insert(wide.begin(), 4 - wide.size(), 1);
  return reshaped(rw, mask, wide, from);
}

/// Channels of a head that attention keeps in registers and cache; wider ones stay matrix products.
constexpr int64_t kMaxHeadDim = 256;

/// softmax(q k' * scale) v of rank 3: attention with a single head.
bool gather_headless(Rewriter& rw, const Node& product, const Node& softmax) {
  Match m{};
  m.v = product.in[1];
  if (!is_f32(rw, m.v, 3) || !match_scores(rw, softmax.in[0], m) || m.mask != ir::kNoValue) return false;
  if (!is_f32(rw, m.q, 3) || !is_f32(rw, m.k, 3)) return false;
  const tensor::Dims q = *rw.dims(m.q), k = *rw.dims(m.k), v = *rw.dims(m.v);
  if (q[0] != k[0] || k[0] != v[0] || k[1] != v[1] || std::max(q[2], v[2]) > kMaxHeadDim) return false;
  const auto one_head = [&](ValueId id, const tensor::Dims& d) {
    return reshaped(rw, id, {d[0], d[1], 1, d[2]}, product.from);
  };
  const std::vector<ValueId> in{one_head(m.q, q), one_head(m.k, k), one_head(m.v, v)};
  const ValueId y = rw.add("attention_bsnd", in, {{"scale", m.scale}}, product.from);
  return rw.replace_same(product.out[0], reshaped(rw, y, {q[0], q[1], v[2]}, product.from));
}

/// The same between head transposes.
bool gather_heads(Rewriter& rw, const Node& product, const Node& softmax) {
  Match m{};
  const auto v = untransposed(rw, product.in[1], {0, 2, 1, 3});
  if (!v || !match_scores(rw, softmax.in[0], m)) return false;
  m.v = *v;
  if (!is_f32(rw, m.q, 4) || !is_f32(rw, m.k, 4) || !is_f32(rw, m.v, 4) || !heads_fit(rw, m)) return false;
  std::vector<ValueId> in{m.q, m.k, m.v};
  if (m.mask != ir::kNoValue) {
    if (rw.graph().type(m.mask).dtype != tensor::DType::f32) return false;
    in.push_back(wide_mask(rw, m.mask, product.from));
  }
  const ValueId y = rw.add("attention_bsnd", std::move(in), {{"scale", m.scale}}, product.from);
  const ir::Attrs back{{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  return rw.replace_same(product.out[0], rw.add("transpose", {y}, back, product.from));
}

bool gather_one(Rewriter& rw, const Node& product) {
  const auto softmax = rw.producer(product.in[0], "softmax");
  if (!softmax || !rw.single_use(product.in[0]) || rw.uses(product.out[0]) == 0) return false;
  const auto scores = rw.dims(softmax->in[0]);
  if (!scores) return false;
  const size_t rank = scores->size();
  if ((rank != 3 && rank != 4) || ir::normal_axis(softmax->attrs.get_int("axis", -1), rank) != rank - 1)
    return false;
  return rank == 4 ? gather_heads(rw, product, *softmax) : gather_headless(rw, product, *softmax);
}

bool is_absent(const Node& node, size_t i) { return i >= node.in.size() || node.in[i] == ir::kNoValue; }

/// True if attention_bsnd has a form of an ONNX attention: no cache, window, cap, key lengths or second
/// result.
bool is_plain(const Rewriter& rw, const Node& node) {
  for (size_t i = 1; i < node.out.size(); ++i) {
    if (node.out[i] != ir::kNoValue && rw.uses(node.out[i]) > 0) return false;
  }
  const ir::Attrs& a = node.attrs;
  return is_absent(node, 4) && is_absent(node, 5) && is_absent(node, 6) && a.get_float("softcap", 0) == 0 &&
         a.get_int("left_window_size", -1) < 0 && a.get_int("right_window_size", -1) < 0;
}

/// A mask that attention_bsnd takes, of every key; kNoValue for none, nullopt for another.
std::optional<ValueId> plain_mask(Rewriter& rw, const Node& node, int64_t keys) {
  if (is_absent(node, 3)) return ir::kNoValue;
  const auto dims = rw.dims(node.in[3]);
  const tensor::DType type = rw.graph().type(node.in[3]).dtype;
  if (!dims || dims->empty() || dims->size() > 4 || dims->back() != keys) return std::nullopt;
  if (type != tensor::DType::f32 && type != tensor::DType::boolean) return std::nullopt;
  return wide_mask(rw, node.in[3], node.from);
}

/// ONNX Attention of transposed heads, or of heads side by side, reads and writes them as they lie.
bool gather_op(Rewriter& rw, const Node& node) {
  if (!is_plain(rw, node) || rw.uses(node.out[0]) == 0) return false;
  std::vector<ValueId> in;
  for (size_t i = 0; i < 3; ++i) {
    const auto dims = rw.dims(node.in[i]);
    if (!dims || rw.graph().type(node.in[i]).dtype != tensor::DType::f32) return false;
    if (dims->size() == 3) {
      const int64_t heads = node.attrs.get_int(i == 0 ? "q_num_heads" : "kv_num_heads", 0);
      if (heads <= 0 || dims->back() % heads != 0) return false;
      in.push_back(
          reshaped(rw, node.in[i], {(*dims)[0], (*dims)[1], heads, dims->back() / heads}, node.from));
    } else {
      const auto lies = untransposed(rw, node.in[i], {0, 2, 1, 3});
      if (!lies) return false;
      in.push_back(*lies);
    }
  }
  const tensor::Dims q = *rw.dims(in[0]), v = *rw.dims(in[2]);
  const auto mask = plain_mask(rw, node, v[1]);
  if (!mask || std::max(q[3], v[3]) > kMaxHeadDim) return false;
  if (*mask != ir::kNoValue) in.push_back(*mask);
  ir::Attrs attrs;
  for (const char* name : {"is_causal", "scale"}) {
    if (const auto* value = node.attrs.find(name)) attrs.set(name, *value);
  }
  const ValueId y = rw.add("attention_bsnd", std::move(in), std::move(attrs), node.from);
  const bool is_flat = rw.dims(node.in[0])->size() == 3;
  const ValueId like =
      is_flat ? reshaped(rw, y, {q[0], q[1], q[2] * v[3]}, node.from)
              : rw.add("transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}}, node.from);
  return rw.replace_same(node.out[0], like);
}

}  // namespace

size_t gather_attention(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "attention") return gather_op(rw, node);
    return node.op_name() == "matmul" && gather_one(rw, node);
  });
}

}  // namespace trireme::passes
