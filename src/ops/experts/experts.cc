// expert_linear, weight_only_experts, block_experts: types, costs, cut rules, expansions.
#include "ops/experts/experts.h"

#include <algorithm>

#include "ops/cut_notation.h"
#include "ops/grad.h"
#include "ops/stored_weights.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

/// Extents of all experts' matrices, as far as they are known.
struct Matrices {
  Dim experts, n, k;
};

int64_t expert_count(const ir::NodeView& n, int64_t rows) {
  const int64_t count = n.attrs.get_int("experts", 0);
  base::require(count > 0 && rows % count == 0, rows, " rows of ", count, " experts");
  return count;
}

Matrices matrices_of(const ir::NodeView& n) {
  if (n.attrs.has("format")) {
    const BlockMatrix m = block_matrix(n, kExWeights);
    const int64_t count = expert_count(n, m.n);
    if (ir::Refusal no = refuse_block_experts(m.n / count)) base::fail_invalid("block_experts: ", *no);
    return {count, m.n / count, m.k};
  }
  const Shape& w = n.in[kExWeights].shape;
  if (!n.attrs.has("experts")) {
    base::require(w.has_rank() && w.rank() == 3, "the weights of experts are [experts, n, k], not ",
                  w.to_string());
    return {w[0], w[1], w[2]};
  }
  const WeightForm form = weight_form(n.attrs, n.in[kExWeights].dtype, n.present(kExZero));
  const int64_t k = check_stored_weights(n, kExWeights, form);
  if (ir::Refusal no = refuse_weight_form(form, k)) base::fail_invalid("weight_only_experts: ", *no);
  const int64_t count = expert_count(n, w[0].value());
  return {count, w[0].value() / count, k};
}

const ExpertPlaces& places_of(const ir::NodeView& n) {
  return n.attrs.has("experts") && !n.attrs.has("format") ? kExpertStoredPlaces : kExpertPlaces;
}

/// Throws unless the first `count` dimensions of a and b agree as far as they are known.
void need_same(const TensorType& a, const TensorType& b, size_t count) {
  for (size_t d = 0; d < count; ++d) {
    const Dim &p = a.shape[d], &q = b.shape[d];
    base::require(!p.is_static() || !q.is_static() || p == q, "rows ", a.to_string(), " for choices ",
                  b.to_string());
  }
}

std::vector<TensorType> infer(const ir::NodeView& n) {
  const ExpertPlaces& at = places_of(n);
  const TensorType &x = n.in[kExX], &chosen = n.in[kExChosen];
  base::require(tensor::is_float(x.dtype), "experts of ", x.to_string());
  base::require(chosen.dtype == DType::i64, "choices are i64, not ", chosen.to_string());
  const Matrices m = matrices_of(n);
  if (!n.attrs.has("experts"))
    base::require(n.in[kExWeights].dtype == x.dtype, "weights ", n.in[kExWeights].to_string(), " for rows ",
                  x.to_string());
  if (n.present(at.bias))
    base::require(n.in[at.bias] == TensorType{x.dtype, Shape{m.experts, m.n}}, "biases ",
                  n.in[at.bias].to_string(), " of ", m.experts.value(), " experts");
  if (!x.shape.has_rank() || !chosen.shape.has_rank()) return {{x.dtype, Shape::unknown_rank()}};
  const bool sums = n.present(at.shares);
  const size_t rank = chosen.shape.rank();
  base::require(rank >= 1 && x.shape.rank() == rank + (sums ? 1 : 0), "rows ", x.to_string(), " for choices ",
                chosen.to_string());
  need_same(x, chosen, sums ? rank : rank - 1);
  const Dim& depth = x.shape[x.shape.rank() - 1];
  base::require(!depth.is_static() || !m.k.is_static() || depth == m.k, "rows ", x.to_string(),
                " for weights ", n.in[kExWeights].to_string());
  if (sums) {
    base::require(n.in[at.shares].dtype == x.dtype && n.in[at.shares].shape.has_rank() &&
                      n.in[at.shares].shape.rank() == rank,
                  "shares ", n.in[at.shares].to_string(), " of choices ", chosen.to_string());
    need_same(n.in[at.shares], chosen, rank);
  }
  std::vector<Dim> out = chosen.shape.dims();
  if (sums) out.pop_back();
  out.push_back(m.n);
  return {{x.dtype, Shape(std::move(out))}};
}

/// Of the weights, only those of as many experts as there are rows count.
ir::Cost cost(const ir::NodeView& n) {
  const ExpertExtents e = expert_extents(n);
  const double used = static_cast<double>(std::min(e.rows(), e.experts)) /
                      static_cast<double>(std::max<int64_t>(1, e.experts));
  ir::Cost c{.flop = 2 * static_cast<double>(e.rows()) * static_cast<double>(e.n) * static_cast<double>(e.k),
             .bytes = static_cast<double>(tensor::bytes_of(n.out[0]))};
  const ExpertPlaces& at = places_of(n);
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (!n.present(i)) continue;
    const bool is_weight = i >= kExWeights && i <= at.bias;
    c.bytes += static_cast<double>(tensor::bytes_of(n.in[i])) * (is_weight ? used : 1);
  }
  return c;
}

/// Columns are cut between groups or blocks; rows of weights in blocks between rows that are packed together.
std::vector<ir::CutRule::Units> stored_units(const ir::NodeView& n) {
  const Matrices m = matrices_of(n);
  const int64_t k = m.k.value();
  if (n.attrs.has("format")) {
    const int64_t block = block_matrix(n, kExWeights).format->weights;
    return {{'K', k / block}, {'N', m.n.value() / kBlockExpertRows}};
  }
  const WeightForm form = weight_form(n.attrs, n.in[kExWeights].dtype, n.present(kExZero));
  constexpr int64_t kLeast = 32;  // columns of weights that have no groups
  return {{'K', k / (form.has_scales() ? form.group : kLeast)}};
}

/// Cuts the rows of all matrices alike, or their columns, which gives each rank a partial sum.
ir::CutRule cut(const ir::NodeView& n) {
  const ExpertPlaces& at = places_of(n);
  const bool sums = n.present(at.shares), is_stored = n.attrs.has("experts");
  const std::string rows = letters(n.in[kExChosen].shape.rank() - 1);
  CutNotation notation(n);
  if (sums) {
    notation.in(kExX, rows + ".K").in(kExChosen, rows + ".").in(at.shares, rows + ".").out(0, rows + "N");
  } else {
    notation.in(kExX, rows + "K").in(kExChosen, rows + "C").out(0, rows + "CN");
  }
  notation.in(kExWeights, is_stored ? "NK" : ".NK").in(at.bias, ".N");
  ir::CutRule rule{.sums = "K", .added = 1u << at.bias};
  const uint32_t bias = 1u << at.bias;
  rule.linear = {1u << kExX | bias};
  if (sums) rule.linear.push_back(1u << at.shares);
  if (!is_stored) {
    rule.linear.push_back(1u << kExWeights | bias);
    rule.uneven = rows + "NK";
  } else {
    const int experts = static_cast<int>(matrices_of(n).experts.value());
    for (size_t i = kExWeights; i < at.bias; ++i) {
      if (!n.present(i)) continue;
      notation.in(i, "NK");
      rule.sections.push_back({false, i, 0, experts});
    }
    rule.units = stored_units(n);
  }
  rule.notation = notation.text();
  return rule;
}

const ir::OpDef& op(const char* name) { return table().need(name); }

/// Adds nodes for the expansions, all with the same origin.
struct Adder {
  ir::Graph& g;
  const std::string& from;

  ValueId add(const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) const {
    while (in.back() == ir::kNoValue) in.pop_back();
    return g.add1(op(name), std::move(in), std::move(attrs), from);
  }
  ValueId ints(const std::vector<int64_t>& v) const {
    return g.add_constant(tensor::Tensor::from<int64_t>({static_cast<int64_t>(v.size())}, v));
  }
  ValueId reshape(ValueId x, const std::vector<int64_t>& to) const { return add("reshape", {x, ints(to)}); }
  /// Transposes the last two dimensions of a value of rank `rank`.
  ValueId turned(ValueId x, size_t rank) const {
    std::vector<int64_t> perm(rank);
    for (size_t i = 0; i < rank; ++i) perm[i] = static_cast<int64_t>(i);
    std::swap(perm[rank - 1], perm[rank - 2]);
    return add("transpose", {x}, {{"perm", perm}});
  }
};

/// A target of reshape: `rank` zeros, which keep dimensions, followed by `rest`.
std::vector<int64_t> kept(size_t rank, std::initializer_list<int64_t> rest) {
  std::vector<int64_t> shape(rank, 0);
  shape.insert(shape.end(), rest);
  return shape;
}

/// Multiplies by all experts. Without shares each choice selects its own product; with shares the inputs of
/// an expert are summed first.
std::vector<ValueId> expand(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  const Adder a{g, node.from};
  const ValueId x = node.in[kExX], bias = operand_or_none(node, kExpertPlaces.bias);
  const ValueId shares = operand_or_none(node, kExpertPlaces.shares);
  const tensor::Dims w = g.type(node.in[kExWeights]).shape.to_dims();
  const int64_t count = w[0], n = w[1], k = w[2];
  const size_t lead = g.type(node.in[kExChosen]).shape.rank() - 1;
  const ValueId off_on = g.add_constant(tensor::Tensor::from<float>({2}, {0.0f, 1.0f}));
  ValueId places = a.add("one_hot", {node.in[kExChosen], a.ints({count}), off_on}, {{"axis", int64_t{-1}}});
  if (g.type(x).dtype != DType::f32) places = a.add("cast_like", {places, x});  // [.., choices, experts]
  if (shares == ir::kNoValue) {
    const ValueId rows = a.reshape(node.in[kExWeights], {count * n, k});
    const ValueId line = bias == ir::kNoValue ? bias : a.reshape(bias, {count * n});
    const ValueId all = a.add("linear", {x, rows, line}, {{"transposed", int64_t{1}}});
    return {a.add("matmul", {places, a.reshape(all, kept(lead, {count, n}))})};
  }
  const ValueId apart = a.add("unsqueeze", {shares, a.ints({static_cast<int64_t>(lead) + 1})});
  const ValueId weights = a.add("mul", {places, apart});                     // [.., choices, experts]
  const ValueId placed = a.add("matmul", {a.turned(weights, lead + 2), x});  // [.., experts, k]
  const ValueId columns = a.reshape(a.turned(node.in[kExWeights], 3), {count * k, n});
  const ValueId y = a.add("matmul", {a.reshape(placed, kept(lead, {count * k})), columns});
  if (bias == ir::kNoValue) return {y};
  const ValueId sums =
      a.add("reduce_sum", {weights, a.ints({-2})}, {{"keepdims", int64_t{0}}});  // [.., experts]
  return {a.add("add", {y, a.add("matmul", {sums, bias})})};
}

/// Dequantizes the weights, then expands to expert_linear.
std::vector<ValueId> expand_stored(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;
  const Adder a{g, node.from};
  const ExpertPlaces& at = node.attrs.has("format") ? kExpertPlaces : kExpertStoredPlaces;
  const bool is_f32 = g.type(node.in[kExX]).dtype == DType::f32;
  const auto widened = [&](ValueId id) {
    return is_f32 || id == ir::kNoValue ? id : a.add("cast", {id}, {{"to", int64_t{1}}});
  };
  ir::Attrs attrs;
  for (const char* name : {"format", "bits", "group"}) {
    if (const auto* value = node.attrs.find(name)) attrs.set(name, *value);
  }
  ValueId w = ir::kNoValue;
  if (node.attrs.has("format")) {
    w = a.add("dequantize_blocks", {node.in[kExWeights]}, attrs);
  } else {
    w = a.add("dequantize_weights",
              {node.in[kExWeights], operand_or_none(node, kExScale), operand_or_none(node, kExZero)}, attrs);
  }
  const tensor::Dims dims = g.type(w).shape.to_dims();
  const int64_t count = node.attrs.get_int("experts", 1);
  w = a.reshape(w, {count, dims[0] / count, dims[1]});
  const ValueId y = a.add(
      "expert_linear", {widened(node.in[kExX]), node.in[kExChosen], w,
                        widened(operand_or_none(node, at.bias)), widened(operand_or_none(node, at.shares))});
  return {is_f32 ? y : a.add("cast_like", {y, node.in[kExX]})};
}

constexpr const char* kMeaning =
    "y[t, c] = x[t] W_e' + bias_e with e = chosen[t, c]; with shares y[t] = sum over c of shares[t, c] (x[t, "
    "c] "
    "W_e' + bias_e)";

ir::OpSchema float_schema() {
  return {.name = "expert_linear",
          .doc = base::concat(kMeaning,
                              ": operands x [..., k] or [..., c, k], chosen i64 [..., c], W "
                              "[experts, n, k], bias [experts, n], shares [..., c]"),
          .is_product = true,
          .cut = cut,
          .min_in = 3,
          .max_in = 5,
          .infer = infer,
          .expand = expand,
          .cost = cost,
          .grad = grad_by_expand()};
}

ir::AttrSpec experts_attr() { return {"experts", "int", "how many matrices lie one under the other"}; }

ir::OpSchema stored_schema() {
  return {.name = "weight_only_experts",
          .doc = base::concat(kMeaning,
                              ": operands x, chosen, W [experts * n, ...], scale, zero as of "
                              "weight_only_linear, bias [experts, n], shares [..., c]"),
          .is_product = true,
          .cut = cut,
          .min_in = 3,
          .max_in = 7,
          .attrs = {{"bits", kWeightBitsKind, "of weights in u8: 8 or 4"},
                    {"group", "int", "weights that share a scale: 32, 64, 128"},
                    experts_attr()},
          .infer = infer,
          .expand = expand_stored,
          .cost = cost,
          .why_no_grad = "its weights are stored"};
}

ir::OpSchema block_schema() {
  return {.name = "block_experts",
          .doc = base::concat(kMeaning,
                              ": operands x, chosen, W u8 [experts * n, bytes of a row] in a block "
                              "format, n a multiple of 16, bias [experts, n], shares [..., c]"),
          .is_product = true,
          .cut = cut,
          .min_in = 3,
          .max_in = 5,
          .attrs = {block_format_attr(), {"rows", "string", "as block_linear"}, experts_attr()},
          .infer = infer,
          .expand = expand_stored,
          .cost = cost,
          .why_no_grad = "its weights are stored"};
}

}  // namespace

ir::Refusal refuse_block_experts(int64_t n) {
  if (n % kBlockExpertRows == 0) return std::nullopt;
  return base::concat("matrices of ", n, " rows, no multiple of ", kBlockExpertRows);
}

const ExpertPlaces* expert_places(const ir::OpSchema& op) {
  if (op.name == "expert_linear" || op.name == "block_experts") return &kExpertPlaces;
  return op.name == "weight_only_experts" ? &kExpertStoredPlaces : nullptr;
}

ExpertExtents expert_extents(const ir::NodeView& node) {
  const Matrices m = matrices_of(node);
  const tensor::Dims chosen = node.in_dims(kExChosen);
  ExpertExtents e{.tokens = 1,
                  .choices = chosen.back(),
                  .experts = m.experts.value(),
                  .n = m.n.value(),
                  .k = m.k.value(),
                  .sums = node.present(places_of(node).shares)};
  for (size_t d = 0; d + 1 < chosen.size(); ++d) e.tokens *= chosen[d];
  return e;
}

std::vector<ir::OpDef> experts_ops() {
  return {{float_schema(), expert_linear_cpu_kernels()},
          {stored_schema(), weight_only_experts_cpu_kernels()},
          {block_schema(), block_experts_cpu_kernels()}};
}

}  // namespace trireme::ops
