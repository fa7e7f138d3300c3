// Replaces softmax(q k' * scale + mask) v, as separate nodes or ONNX Attention, by attention_bsnd.
#include <algorithm>

#include "passes/rewriter.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// A value that was divided or multiplied by constants: scale * value.
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

/// Heads [batch, heads, rows, channels] (for keys [batch, heads, channels, rows]) as [batch, rows, heads,
/// channels]: the operand of the transpose that made them, or a new transpose, which merge_moves joins with
/// the nodes before it.
ValueId rows_first(Rewriter& rw, ValueId id, bool keys, const std::string& from) {
  const std::vector<int64_t> made =
      keys ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 2, 1, 3};
  const std::vector<int64_t> back = keys ? std::vector<int64_t>{0, 3, 1, 2} : made;
  const auto t = rw.producer(id, "transpose");
  if (t && t->attrs.get_ints("perm") == made) return t->in[0];
  return rw.add("transpose", {id}, {{"perm", back}}, from);
}

/// A term that was added to the scores when they had the extents `at`.
struct Term {
  ValueId value;
  tensor::Dims at;
};

struct Match {
  ValueId q, k, v;
  std::vector<Term> terms;
  ValueId factor = ir::kNoValue;  // of whole heads or batches of scores, such as [heads, 1, 1]
  tensor::Dims factor_at;         // the extents of the scores when they were multiplied
  double scale = 1;
};

/// The most views and sums between product and softmax that are searched.
constexpr int kMaxStepsToProduct = 6;

/// True if `id` is a product under scalings and at most `steps` views and sums, each with one reader.
bool leads_to_product(const Rewriter& rw, ValueId id, int steps = kMaxStepsToProduct) {
  id = strip_scale(rw, id).value;
  if (steps < 0 || !rw.single_use(id)) return false;
  if (rw.producer(id, "matmul")) return true;
  if (const auto view = rw.producer(id, "reshape")) return leads_to_product(rw, view->in[0], steps - 1);
  auto joint = rw.producer(id, "add");
  if (!joint) joint = rw.producer(id, "mul");
  return joint &&
         (leads_to_product(rw, joint->in[0], steps - 1) || leads_to_product(rw, joint->in[1], steps - 1));
}

/// True if `id` is constant over the last two axes of scores, which it broadcasts over.
bool is_factor(const Rewriter& rw, ValueId id) {
  const auto dims = rw.dims(id);
  if (!dims || dims->size() > 4 || rw.graph().type(id).dtype != tensor::DType::f32) return false;
  const size_t rank = dims->size();
  return (rank < 1 || (*dims)[rank - 1] == 1) && (rank < 2 || (*dims)[rank - 2] == 1);
}

/// Collects the terms added between product and softmax, through views; returns the scaled product.
std::optional<ValueId> product_under(const Rewriter& rw, ValueId id, Match& m) {
  while (leads_to_product(rw, id)) {
    if (const auto view = rw.producer(id, "reshape")) {
      id = view->in[0];
    } else if (const auto add = rw.producer(id, "add")) {
      const size_t side = leads_to_product(rw, add->in[0]) ? 0 : 1;
      if (rw.dims(add->in[side]) != rw.dims(id) || !rw.dims(id)) return std::nullopt;
      if (m.factor != ir::kNoValue) return std::nullopt;  // would have to multiply the term
      m.terms.push_back({add->in[1 - side], *rw.dims(id)});
      id = add->in[side];
    } else if (const auto mul = rw.producer(id, "mul"); mul && !rw.scalar_operand(*mul)) {
      const size_t side = leads_to_product(rw, mul->in[0]) ? 0 : 1;
      const bool fits = m.factor == ir::kNoValue && is_factor(rw, mul->in[1 - side]);
      if (!fits || rw.dims(mul->in[side]) != rw.dims(id) || !rw.dims(id)) return std::nullopt;
      m.factor = mul->in[1 - side];
      m.factor_at = *rw.dims(id);
      id = mul->in[side];
    } else {
      return id;
    }
  }
  return std::nullopt;
}

/// Matches softmax's argument: [scale *] q k' [+ terms]. q [.., rows, channels] and k' [.., channels, keys]
/// are returned as the product reads them.
bool match_scores(const Rewriter& rw, ValueId scores, const tensor::Dims& wanted, Match& m) {
  const auto product_scaled = product_under(rw, scores, m);
  if (!product_scaled) return false;
  const Scaled s = strip_scale(rw, *product_scaled);
  const auto product = rw.producer(s.value, "matmul");
  if (!product || rw.dims(s.value) != wanted) return false;
  const Scaled q = strip_scale(rw, product->in[0]), k = strip_scale(rw, product->in[1]);
  m.q = q.value;
  m.k = k.value;
  m.scale = s.scale * q.scale * k.scale;
  return true;
}

/// matmul broadcasts batches and heads; attention requires equal batches, and key heads that are equal in
/// number to the query heads or divide it. q [b, h, rows, d], k' [b, g, d, keys], v [b, g, keys, e].
bool heads_fit(const tensor::Dims& q, const tensor::Dims& k, const tensor::Dims& v) {
  return q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && k[3] == v[2] && (q[1] == k[1] || k[1] == 1);
}

bool is_f32_of_rank(const Rewriter& rw, ValueId id, size_t rank) {
  const auto dims = rw.dims(id);
  return dims && dims->size() == rank && rw.graph().type(id).dtype == tensor::DType::f32;
}

ValueId reshaped(Rewriter& rw, ValueId id, const tensor::Dims& dims, const std::string& from) {
  const auto rank = static_cast<int64_t>(dims.size());
  const ValueId shape =
      rw.constant(tensor::Tensor::from<int64_t>({rank}, std::span<const int64_t>(dims.data(), dims.size())));
  return rw.add("reshape", {id, shape}, {}, from);
}

/// Reshapes a mask of rank up to 4 to [batch, heads, queries, keys] with leading extents of 1.
ValueId wide_mask(Rewriter& rw, ValueId mask, const std::string& from) {
  tensor::Dims wide = *rw.dims(mask);
  if (wide.size() == 4) return mask;
  wide.insert(wide.begin(), 4 - wide.size(), 1);
  return reshaped(rw, mask, wide, from);
}

tensor::Dims padded(tensor::Dims dims, size_t rank) {
  dims.insert(dims.begin(), rank - dims.size(), 1);
  return dims;
}

/// A term as a mask that broadcasts over scores [batch, heads, queries, keys]; nullopt if it does not. If a
/// term differs among windows, [images, windows, heads, queries, keys], windows count as the batch.
std::optional<ValueId> mask_of(Rewriter& rw, const Term& term, const tensor::Dims& scores,
                               const std::string& from) {
  const auto given = rw.dims(term.value);
  if (!given || given->size() > term.at.size()) return std::nullopt;
  const tensor::Dims wide = padded(*given, term.at.size());
  if (term.at == scores) return given->size() == 4 ? term.value : reshaped(rw, term.value, wide, from);
  if (term.at.size() != 5 || term.at[0] * term.at[1] != scores[0] ||
      !std::equal(term.at.begin() + 2, term.at.end(), scores.begin() + 1))
    return std::nullopt;
  const bool same = wide[0] == 1 && wide[1] == 1;
  tensor::Dims of_each(wide.begin() + 1, wide.end());
  of_each[0] = same ? 1 : scores[0];
  if (same || wide[0] * wide[1] == scores[0]) return reshaped(rw, term.value, of_each, from);
  const tensor::Dims every{term.at[0], term.at[1], wide[2], wide[3], wide[4]};
  const ValueId shape = rw.constant(tensor::Tensor::from<int64_t>({5}, std::span<const int64_t>(every)));
  return reshaped(rw, rw.add("expand", {term.value, shape}, {}, from), of_each, from);
}

/// The sum of all terms; kNoValue if there are none, nullopt if a term is no mask.
std::optional<ValueId> mask_of(Rewriter& rw, const Match& m, const tensor::Dims& scores,
                               const std::string& from) {
  ValueId sum = ir::kNoValue;
  for (const Term& term : m.terms) {
    if (rw.graph().type(term.value).dtype != tensor::DType::f32) return std::nullopt;
    const auto mask = mask_of(rw, term, scores, from);
    if (!mask) return std::nullopt;
    sum = sum == ir::kNoValue ? *mask : rw.add("add", {*mask, sum}, {}, from);
  }
  if (sum == ir::kNoValue || rw.dims(sum)->back() == scores.back()) return sum;
  // A mask over fewer keys would hide the remaining ones, so it is expanded to all keys.
  tensor::Dims every = *rw.dims(sum);
  every.back() = scores.back();
  const ValueId shape = rw.constant(tensor::Tensor::from<int64_t>({4}, std::span<const int64_t>(every)));
  return rw.add("expand", {sum, shape}, {}, from);
}

/// The most channels per head that attention keeps in registers and cache; larger heads stay matrix products.
constexpr int64_t kMaxHeadDim = 256;

/// The reason why a product over a softmax was not replaced by attention; nullopt if it was.
using Miss = std::optional<std::string>;

constexpr const char* kNoProduct =
    "under the softmax stands no product of queries and keys, or something else reads what lies between";
constexpr const char* kNoF32 = "queries, keys and values are not f32 of known extents";

std::string unfit(const tensor::Dims& q, const tensor::Dims& k, const tensor::Dims& v) {
  return base::concat("queries ", tensor::to_string(q), ", transposed keys ", tensor::to_string(k),
                      " and values ", tensor::to_string(v), " share no batch and heads");
}

std::string wide(int64_t query, int64_t value) {
  return base::concat("heads of ", std::max(query, value), " channels: products are as fast above ",
                      kMaxHeadDim);
}

Miss done(bool replaced) {
  if (replaced) return std::nullopt;
  return "the result has another type";
}

/// softmax(q k' * scale) v of rank 3: attention with one head.
Miss gather_headless(Rewriter& rw, const Node& product, const Node& softmax) {
  Match m{};
  m.v = product.in[1];
  if (!match_scores(rw, softmax.in[0], *rw.dims(product.in[0]), m)) return kNoProduct;
  if (!m.terms.empty() || m.factor != ir::kNoValue) return "scores without heads are masked";
  if (!is_f32_of_rank(rw, m.q, 3) || !is_f32_of_rank(rw, m.k, 3) || !is_f32_of_rank(rw, m.v, 3))
    return kNoF32;
  const tensor::Dims q = *rw.dims(m.q), k = *rw.dims(m.k), v = *rw.dims(m.v);
  if (q[0] != k[0] || k[0] != v[0] || k[2] != v[1]) return unfit(q, k, v);
  if (std::max(q[2], v[2]) > kMaxHeadDim) return wide(q[2], v[2]);
  const auto t = rw.producer(m.k, "transpose");
  const std::vector<int64_t> swap{0, 2, 1};
  const ValueId keys = t && t->attrs.get_ints("perm") == swap
                           ? t->in[0]
                           : rw.add("transpose", {m.k}, {{"perm", swap}}, product.from);
  const auto one_head = [&](ValueId id) {
    const tensor::Dims d = *rw.dims(id);
    return reshaped(rw, id, {d[0], d[1], 1, d[2]}, product.from);
  };
  const std::vector<ValueId> in{one_head(m.q), one_head(keys), one_head(m.v)};
  const ValueId y = rw.add("attention_bsnd", in, {{"scale", m.scale}}, product.from);
  return done(rw.replace_same(product.out[0], reshaped(rw, y, {q[0], q[1], v[2]}, product.from)));
}

/// The same for heads [batch, heads, rows, channels].
Miss gather_heads(Rewriter& rw, const Node& product, const Node& softmax) {
  Match m{};
  m.v = product.in[1];
  const tensor::Dims scores = *rw.dims(product.in[0]);
  if (!match_scores(rw, softmax.in[0], scores, m)) return kNoProduct;
  if (!is_f32_of_rank(rw, m.q, 4) || !is_f32_of_rank(rw, m.k, 4) || !is_f32_of_rank(rw, m.v, 4))
    return kNoF32;
  const tensor::Dims q = *rw.dims(m.q), k = *rw.dims(m.k), v = *rw.dims(m.v);
  if (!heads_fit(q, k, v)) return unfit(q, k, v);
  if (std::max(q[3], v[3]) > kMaxHeadDim) return wide(q[3], v[3]);
  if (m.factor != ir::kNoValue && m.factor_at != scores) return "a factor multiplied scores of other extents";
  const auto mask = mask_of(rw, m, scores, product.from);
  if (!mask) return base::concat("what is added does not broadcast over scores ", tensor::to_string(scores));
  if (m.factor != ir::kNoValue) m.q = rw.add("mul", {m.q, m.factor}, {}, product.from);
  std::vector<ValueId> in{rows_first(rw, m.q, false, product.from), rows_first(rw, m.k, true, product.from),
                          rows_first(rw, m.v, false, product.from)};
  if (*mask != ir::kNoValue) in.push_back(*mask);
  const ValueId y = rw.add("attention_bsnd", std::move(in), {{"scale", m.scale}}, product.from);
  const ir::Attrs back{{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  return done(rw.replace_same(product.out[0], rw.add("transpose", {y}, back, product.from)));
}

/// The softmax that computes `id`, perhaps under a view that keeps the last axis, or within
/// where(is_nan(softmax), 0, softmax): PyTorch gives 0 to rows without visible keys, as attention does.
std::optional<Node> softmax_of(const Rewriter& rw, ValueId id) {
  if (const auto view = rw.producer(id, "reshape")) {
    const auto from = rw.dims(view->in[0]), to = rw.dims(id);
    const bool keeps = from && to && !from->empty() && !to->empty() && from->back() == to->back();
    if (!keeps || !rw.single_use(id)) return std::nullopt;
    id = view->in[0];
  }
  const auto where = rw.producer(id, "where");
  if (!where) return rw.single_use(id) ? rw.producer(id, "softmax") : std::nullopt;
  const auto nan = rw.producer(where->in[0], "is_nan");
  const ValueId scores = where->in[2];
  if (!nan || nan->in[0] != scores || !rw.is_scalar(where->in[1], 0) || rw.uses(scores) != 2)
    return std::nullopt;
  return rw.single_use(id) ? rw.producer(scores, "softmax") : std::nullopt;
}

Miss gather_one(Rewriter& rw, const Node& product, const Node& softmax) {
  const auto own = rw.dims(softmax.in[0]), scores = rw.dims(product.in[0]);
  if (!own || !scores) return "extents are not known";
  if (ir::normal_axis(softmax.attrs.get_int("axis", -1), own->size()) != own->size() - 1)
    return "the softmax is not over the last axis";
  if (scores->size() == 4) return gather_heads(rw, product, softmax);
  if (scores->size() == 3) return gather_headless(rw, product, softmax);
  return base::concat("scores of rank ", scores->size());
}

/// True if attention_bsnd can express an ONNX Attention node: it has no cache, no window to the right, no key
/// lengths and no second result.
bool is_plain_attention(const Rewriter& rw, const Node& node) {
  for (size_t i = 1; i < node.out.size(); ++i) {
    if (node.out[i] != ir::kNoValue && rw.uses(node.out[i]) > 0) return false;
  }
  return !node.has_operand(4) && !node.has_operand(5) && !node.has_operand(6) &&
         node.attrs.get_int("right_window_size", -1) < 0;
}

/// The operand as a mask over all keys for attention_bsnd; kNoValue if absent, nullopt if unsupported.
std::optional<ValueId> plain_mask(Rewriter& rw, const Node& node, int64_t keys) {
  if (!node.has_operand(3)) return ir::kNoValue;
  const auto dims = rw.dims(node.in[3]);
  const tensor::DType type = rw.graph().type(node.in[3]).dtype;
  if (!dims || dims->empty() || dims->size() > 4 || dims->back() != keys) return std::nullopt;
  if (type != tensor::DType::f32 && type != tensor::DType::boolean) return std::nullopt;
  return wide_mask(rw, node.in[3], node.from);
}

/// Makes ONNX Attention read and write heads without the transposes or reshapes around it.
bool gather_op(Rewriter& rw, const Node& node) {
  if (!is_plain_attention(rw, node) || rw.uses(node.out[0]) == 0) return false;
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
      in.push_back(rows_first(rw, node.in[i], false, node.from));
    }
  }
  const tensor::Dims q = *rw.dims(in[0]), v = *rw.dims(in[2]);
  const auto mask = plain_mask(rw, node, v[1]);
  if (!mask || std::max(q[3], v[3]) > kMaxHeadDim) return false;
  if (*mask != ir::kNoValue) in.push_back(*mask);
  ir::Attrs attrs;
  for (const char* name : {"is_causal", "scale", "softcap", "left_window_size"}) {
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
    if (node.op_name() != "matmul" || rw.uses(node.out[0]) == 0) return false;
    const auto softmax = softmax_of(rw, node.in[0]);
    return softmax && !gather_one(rw, node, *softmax);
  });
}

std::vector<std::string> attention_misses(const ir::Graph& graph) {
  ir::Graph trial = graph;
  Rewriter rw(trial);
  std::vector<std::string> misses;
  rw.for_each("matmul", [&](ir::NodeId, const Node& node) {
    const auto softmax = rw.uses(node.out[0]) == 0 ? std::nullopt : softmax_of(rw, node.in[0]);
    if (!softmax) return false;
    const Miss miss = gather_one(rw, node, *softmax);
    if (miss) misses.push_back(base::concat(node.from, ": no single step of attention: ", *miss));
    return !miss;
  });
  return misses;
}

}  // namespace trireme::passes
