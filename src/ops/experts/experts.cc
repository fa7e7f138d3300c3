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

/// Throws unless the node's `parts`, `first` and `of` fit its experts.
ExpertsHere here_of(const ir::NodeView& n, int64_t experts) {
  ExpertsHere h{.has_parts = n.attrs.has("parts"), .all = experts};
  if (!h.has_parts) return h;
  h.parts = n.attrs.get_int("parts", 1);
  h.first = n.attrs.get_int("first", 0);
  h.all = n.attrs.get_int("of", experts);
  base::require(h.parts > 0 && experts % h.parts == 0, experts, " experts in ", h.parts, " parts");
  base::require(h.first >= 0 && h.first <= h.all - experts, experts, " experts from the ", h.first,
                "th on, of ", h.all);
  return h;
}

const ExpertPlaces& places_of(const ir::NodeView& n) {
  return n.attrs.has("experts") && !n.attrs.has("format") ? kExpertStoredPlaces : kExpertPlaces;
}

/// Throws unless the first `count` dimensions of a behind `skipped` and of b agree as far as they are known.
void need_same(const TensorType& a, const TensorType& b, size_t count, size_t skipped = 0) {
  for (size_t d = 0; d < count; ++d) {
    const Dim &p = a.shape[d + skipped], &q = b.shape[d];
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
  const size_t parts = n.attrs.has("parts") ? 1 : 0;  // dimensions in front of rows of choices
  const int64_t part_count = parts == 0 ? 0 : here_of(n, m.experts.value()).parts;
  if (!n.attrs.has("experts"))
    base::require(n.in[kExWeights].dtype == x.dtype, "weights ", n.in[kExWeights].to_string(), " for rows ",
                  x.to_string());
  if (n.present(at.bias))
    base::require(n.in[at.bias] == TensorType{x.dtype, Shape{m.experts, m.n}}, "biases ",
                  n.in[at.bias].to_string(), " of ", m.experts.value(), " experts");
  if (!x.shape.has_rank() || !chosen.shape.has_rank()) return {{x.dtype, Shape::unknown_rank()}};
  const bool sums = n.present(at.shares);
  const size_t rank = chosen.shape.rank();
  base::require(rank >= 1 && x.shape.rank() == rank + (sums ? 1 + parts : 0), "rows ", x.to_string(),
                " for choices ", chosen.to_string());
  base::require(!sums || parts == 0 || x.shape[0] == Dim(part_count), "rows ", x.to_string(), " of ",
                part_count, " parts");
  need_same(x, chosen, sums ? rank : rank - 1, sums ? parts : 0);
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
  if (!sums && parts > 0) out.insert(out.begin(), Dim(part_count));
  return {{x.dtype, Shape(std::move(out))}};
}

/// Of the weights, only those of as many experts as there are rows count. Where other ranks have the other
/// experts, choices are taken to fall on all alike.
ir::Cost cost(const ir::NodeView& n) {
  const ExpertExtents e = expert_extents(n);
  const int64_t all = std::max<int64_t>(1, e.here.all), rows = (e.rows() * e.experts + all - 1) / all;
  const double used =
      static_cast<double>(std::min(rows, e.experts)) / static_cast<double>(std::max<int64_t>(1, e.experts));
  ir::Cost c{.flop = 2 * static_cast<double>(rows) * static_cast<double>(e.n) * static_cast<double>(e.k),
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

/// Cuts between experts: a rank has the rows of its part, and of sums over choices those of its experts.
ir::CutRule cut_between_experts(const ir::NodeView& n) {
  const ExpertPlaces& at = places_of(n);
  const bool sums = n.present(at.shares);
  const std::string rows = letters(n.in[kExChosen].shape.rank() - 1);
  CutNotation notation(n);
  if (sums) {
    notation.in(kExX, "E" + rows + "..").in(kExChosen, rows + ".").in(at.shares, rows + ".");
    notation.out(0, rows + ".");
  } else {
    notation.in(kExX, rows + ".").in(kExChosen, rows + "C").out(0, "E" + rows + "C.");
  }
  for (size_t i = kExWeights; i < at.bias; ++i) {
    if (n.present(i)) notation.in(i, n.in[i].shape.rank() == 3 ? "E.." : "E.");
  }
  notation.in(at.bias, "E.");
  ir::CutRule rule{.notation = notation.text(), .sums = "E"};
  if (sums) rule.linear = {1u << kExX | 1u << at.bias, 1u << at.shares};
  rule.units = {{'E', here_of(n, matrices_of(n).experts.value()).parts}};
  return rule;
}

/// Cuts the rows of all matrices alike, or their columns, which gives each rank a partial sum.
ir::CutRule cut(const ir::NodeView& n) {
  if (n.attrs.has("parts")) return cut_between_experts(n);
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

/// Tells a rank which of the experts it has.
void localise(ir::LocalNode& l) {
  if (!l.global.attrs.has("parts")) return;
  const int64_t experts = matrices_of(l.global).experts.value();
  const ExpertsHere here = here_of(l.global, experts);
  const int64_t lines = l.global.in_dims(kExWeights)[0] / experts;  // of an expert: its rows, or itself
  const int64_t own = l.in[kExWeights][0] / lines;
  if (l.global.attrs.has("experts")) l.attrs.set("experts", own);
  l.attrs.set("parts", here.parts * own / experts);
  l.attrs.set("first", here.first + l.in_begin[kExWeights][0] / lines);
  l.attrs.set("of", here.all);
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

/// Operands of the product by all experts of a part.
struct DensePart {
  ValueId x, places;  ///< places [.., choices, experts]: 1 for the expert that a choice names
  ValueId weights, bias, shares;
  size_t lead;  ///< dimensions of tokens
};

/// Multiplies by all experts. Without shares each choice selects its own product; with shares the inputs of
/// an expert are summed first.
ValueId dense_product(ir::Graph& g, const Adder& a, const DensePart& p) {
  const tensor::Dims w = g.type(p.weights).shape.to_dims();
  const int64_t count = w[0], n = w[1], k = w[2];
  if (p.shares == ir::kNoValue) {
    const ValueId rows = a.reshape(p.weights, {count * n, k});
    const ValueId line = p.bias == ir::kNoValue ? p.bias : a.reshape(p.bias, {count * n});
    const ValueId all = a.add("linear", {p.x, rows, line}, {{"transposed", int64_t{1}}});
    return a.add("matmul", {p.places, a.reshape(all, kept(p.lead, {count, n}))});
  }
  const ValueId apart = a.add("unsqueeze", {p.shares, a.ints({static_cast<int64_t>(p.lead) + 1})});
  const ValueId weights = a.add("mul", {p.places, apart});                       // [.., choices, experts]
  const ValueId placed = a.add("matmul", {a.turned(weights, p.lead + 2), p.x});  // [.., experts, k]
  const ValueId columns = a.reshape(a.turned(p.weights, 3), {count * k, n});
  const ValueId y = a.add("matmul", {a.reshape(placed, kept(p.lead, {count * k})), columns});
  if (p.bias == ir::kNoValue) return y;
  const ValueId sums =
      a.add("reduce_sum", {weights, a.ints({-2})}, {{"keepdims", int64_t{0}}});  // [.., experts]
  return a.add("add", {y, a.add("matmul", {sums, p.bias})});
}

/// The products of each part of the experts, side by side or summed.
ValueId products_of_parts(ir::Graph& g, const Adder& a, const DensePart& all, const ExpertsHere& here) {
  const int64_t experts = g.type(all.weights).shape.to_dims()[0], each = experts / here.parts;
  const auto part = [&](ValueId id, int64_t axis, int64_t first, int64_t count) {
    if (id == ir::kNoValue || g.type(id).shape.to_dims()[static_cast<size_t>(axis)] == count) return id;
    return a.add("slice", {id, a.ints({first}), a.ints({first + count}), a.ints({axis})});
  };
  std::vector<ValueId> made;
  for (int64_t p = 0; p < here.parts; ++p) {
    DensePart one = all;
    one.places = part(all.places, static_cast<int64_t>(all.lead) + 1, here.first + p * each, each);
    one.weights = part(all.weights, 0, p * each, each);
    one.bias = part(all.bias, 0, p * each, each);
    if (all.shares == ir::kNoValue) {
      made.push_back(a.add("unsqueeze", {dense_product(g, a, one), a.ints({0})}));
      continue;
    }
    one.x = a.add("squeeze", {part(all.x, 0, p, 1), a.ints({0})});
    const ValueId y = dense_product(g, a, one);
    made = {made.empty() ? y : a.add("add", {made[0], y})};
  }
  return made.size() == 1 ? made[0] : a.add("concat", made, {{"axis", int64_t{0}}});
}

std::vector<ValueId> expand(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  const Adder a{g, node.from};
  const int64_t experts = g.type(node.in[kExWeights]).shape.to_dims()[0];
  const ExpertsHere here = here_of(g.view(node), experts);
  const ValueId off_on = g.add_constant(tensor::Tensor::from<float>({2}, {0.0f, 1.0f}));
  ValueId places =
      a.add("one_hot", {node.in[kExChosen], a.ints({here.all}), off_on}, {{"axis", int64_t{-1}}});
  if (g.type(node.in[kExX]).dtype != DType::f32) places = a.add("cast_like", {places, node.in[kExX]});
  const DensePart all{.x = node.in[kExX],
                      .places = places,
                      .weights = node.in[kExWeights],
                      .bias = operand_or_none(node, kExpertPlaces.bias),
                      .shares = operand_or_none(node, kExpertPlaces.shares),
                      .lead = g.type(node.in[kExChosen]).shape.rank() - 1};
  return {here.has_parts ? products_of_parts(g, a, all, here) : dense_product(g, a, all)};
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
  ir::Attrs here;
  copy_experts_here(node.attrs, here);
  const ValueId y =
      a.add("expert_linear",
            {widened(node.in[kExX]), node.in[kExChosen], w, widened(operand_or_none(node, at.bias)),
             widened(operand_or_none(node, at.shares))},
            here);
  return {is_f32 ? y : a.add("cast_like", {y, node.in[kExX]})};
}

constexpr const char* kMeaning =
    "y[t, c] = x[t] W_e' + bias_e with e = chosen[t, c]; with shares y[t] = sum over c of shares[t, c] (x[t, "
    "c] "
    "W_e' + bias_e)";

/// The attributes of a rank's part of the experts, behind those in `attrs`.
std::vector<ir::AttrSpec> with_parts(std::vector<ir::AttrSpec> attrs) {
  attrs.push_back({"parts", "int", "in so many parts, a first dimension of rows of choices"});
  attrs.push_back({"first", "int", "of parts: the number of the first expert here"});
  attrs.push_back({"of", "int", "of parts: how many experts choices name"});
  return attrs;
}

ir::OpSchema float_schema() {
  return {.name = "expert_linear",
          .doc = base::concat(kMeaning,
                              ": operands x [..., k] or [..., c, k], chosen i64 [..., c], W "
                              "[experts, n, k], bias [experts, n], shares [..., c]"),
          .is_product = true,
          .cut = cut,
          .localise = localise,
          .min_in = 3,
          .max_in = 5,
          .attrs = with_parts({}),
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
          .localise = localise,
          .min_in = 3,
          .max_in = 7,
          .attrs = with_parts({{"bits", kWeightBitsKind, "of weights in u8: 8 or 4"},
                               {"group", "int", "weights that share a scale: 32, 64, 128"},
                               experts_attr()}),
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
          .localise = localise,
          .min_in = 3,
          .max_in = 5,
          .attrs = with_parts({block_format_attr(), {"rows", "string", "as block_linear"}, experts_attr()}),
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

void copy_experts_here(const ir::Attrs& from, ir::Attrs& to) {
  for (const char* name : {"parts", "first", "of"}) {
    if (const auto* value = from.find(name)) to.set(name, *value);
  }
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
                  .sums = node.present(places_of(node).shares),
                  .here = here_of(node, m.experts.value())};
  for (size_t d = 0; d + 1 < chosen.size(); ++d) e.tokens *= chosen[d];
  return e;
}

std::vector<ir::OpDef> experts_ops() {
  return {{float_schema(), expert_linear_cpu_kernels()},
          {stored_schema(), weight_only_experts_cpu_kernels()},
          {block_schema(), block_experts_cpu_kernels()}};
}

}  // namespace trireme::ops
