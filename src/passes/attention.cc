// softmax(q k' * scale + mask) v between head transposes, gathered into attention_bsnd.
#include "passes/rewriter.h"
#include "passes/transformer.h"

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

/// softmax's argument: [scale *] q k' [+ mask].
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
  const auto q_lies = untransposed(rw, q.value, {0, 2, 1, 3}),
             k_lies = untransposed(rw, k.value, {0, 2, 3, 1});
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

bool is_f32_rank4(const Rewriter& rw, ValueId id) {
  const auto dims = rw.dims(id);
  return dims && dims->size() == 4 && rw.graph().type(id).dtype == tensor::DType::f32;
}

bool gather_one(Rewriter& rw, const Node& product) {
  const auto softmax = rw.producer(product.in[0], "softmax");
  if (!softmax || !rw.single_use(product.in[0]) || rw.uses(product.out[0]) == 0) return false;
  const auto scores = rw.dims(softmax->in[0]);
  if (!scores || scores->size() != 4 || ir::normal_axis(softmax->attrs.get_int("axis", -1), 4) != 3)
    return false;
  Match m{};
  const auto v = untransposed(rw, product.in[1], {0, 2, 1, 3});
  if (!v || !match_scores(rw, softmax->in[0], m)) return false;
  m.v = *v;
  if (!is_f32_rank4(rw, m.q) || !is_f32_rank4(rw, m.k) || !is_f32_rank4(rw, m.v)) return false;
  if (!heads_fit(rw, m)) return false;
  std::vector<ValueId> in{m.q, m.k, m.v};
  if (m.mask != ir::kNoValue) {
    if (rw.graph().type(m.mask).dtype != tensor::DType::f32) return false;
    tensor::Dims wide = *rw.dims(m.mask);
    wide.insert(wide.begin(), 4 - wide.size(), 1);
    const ValueId shape = rw.constant(tensor::Tensor::from<int64_t>({4}, std::span<const int64_t>(wide)));
    in.push_back(rw.dims(m.mask)->size() == 4 ? m.mask
                                              : rw.add("reshape", {m.mask, shape}, {}, product.from));
  }
  const ValueId y = rw.add("attention_bsnd", std::move(in), {{"scale", m.scale}}, product.from);
  const ir::Attrs back{{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  return rw.replace_same(product.out[0], rw.add("transpose", {y}, back, product.from));
}

}  // namespace

size_t gather_attention(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("matmul", [&](ir::NodeId, const Node& node) { return gather_one(rw, node); });
}

}  // namespace trireme::passes
