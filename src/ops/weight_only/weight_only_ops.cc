// weight_only_linear and dequantize_weights: schemas, and their expansions into plain ops.
#include "ops/cut_notation.h"
#include "ops/stored_weights.h"
#include "ops/table.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::ops {
namespace {

using tensor::DType;

std::vector<tensor::TensorType> infer(const ir::NodeView& n) {
  const tensor::Shape &x = n.in[kWoX].shape, &w = n.in[kWoWeights].shape;
  const WeightForm form = weight_form(n.attrs, n.in[kWoWeights].dtype, n.present(kWoZero));
  if (form.has_scales() && (form.group != 32 && form.group != 64 && form.group != 128))
    base::fail_invalid("weight_only_linear: ", *refuse_weight_form(form, form.group));
  const int64_t k = check_stored_weights(n, kWoWeights, form);
  if (ir::Refusal no = refuse_weight_form(form, k)) base::fail_invalid("weight_only_linear: ", *no);
  if (n.present(kWoBias))
    base::require(n.in[kWoBias].dtype == n.in[kWoX].dtype && n.in[kWoBias].shape == tensor::Shape{w[0]},
                  "bias ", n.in[kWoBias].to_string(), " for ", name_of(n.in[kWoX].dtype), " rows of ",
                  w[0].to_string());
  if (!x.has_rank()) return {{n.in[kWoX].dtype, x}};
  base::require(x.rank() >= 1 && (!x[x.rank() - 1].is_static() || x[x.rank() - 1].value() == k), "rows ",
                x.to_string(), " for weights of depth ", k);
  std::vector<tensor::Dim> out = x.dims();
  out.back() = w[0];
  return {{n.in[kWoX].dtype, tensor::Shape(std::move(out))}};
}

std::vector<tensor::TensorType> infer_dequantize(const ir::NodeView& n) {
  const WeightForm form = weight_form(n.attrs, n.in[kDqWeights].dtype, n.present(kDqZero));
  const int64_t k = check_stored_weights(n, kDqWeights, form);
  if (n.present(kDqOrder))
    base::require(n.in[kDqOrder].dtype == DType::i32 && n.in[kDqOrder].shape == tensor::Shape{k},
                  "an order of columns is i32 [", k, "], not ", n.in[kDqOrder].to_string());
  return {{DType::f32, tensor::Shape{n.in[kDqWeights].shape[0], tensor::Dim(k)}}};
}

double bytes_of_all(const ir::NodeView& n) {
  double bytes = static_cast<double>(tensor::bytes_of(n.out[0]));
  for (size_t i = 0; i < n.in.size(); ++i)
    bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  return bytes;
}

ir::Cost cost(const ir::NodeView& n) {
  return {.flop = 2.0 * static_cast<double>(n.in_dims(kWoX).back()) *
                  static_cast<double>(n.out[0].shape.elements().value_or(0)),
          .bytes = bytes_of_all(n)};
}

ir::Cost dequantize_cost(const ir::NodeView& n) {
  return {.flop = 2 * static_cast<double>(n.out[0].shape.elements().value_or(0)), .bytes = bytes_of_all(n)};
}

ir::ValueId ints(ir::Graph& g, std::vector<int64_t> v) {
  const auto n = static_cast<int64_t>(v.size());
  return g.add_constant(tensor::Tensor::from<int64_t>({n}, v));
}

/// Unpacks codes to f32 [n, groups, group].
ir::ValueId unpacked(ir::Graph& g, ir::ValueId w, const WeightForm& form, tensor::Dims dims) {
  const auto ops = [](const char* name) -> const ir::OpDef& { return table().need(name); };
  const int64_t n = dims[0], k = dims[1] * 8 / form.bits;
  const ir::ValueId shape = ints(g, {n, k / form.group, form.group});
  ir::ValueId f = g.add1(ops("cast"), {w}, {{"to", int64_t{1}}});
  if (form.bits == 8) {  // bytes above 127 are negative
    const ir::ValueId half = g.add_constant(tensor::Tensor::scalar(127.5f));
    const ir::ValueId wrap = g.add_constant(tensor::Tensor::scalar(256.0f));
    const ir::ValueId below = g.add1(ops("sub"), {f, wrap});
    f = g.add1(ops("where"), {g.add1(ops("greater"), {f, half}), below, f});
    return g.add1(ops("reshape"), {f, shape});
  }
  const ir::ValueId sixteen = g.add_constant(tensor::Tensor::scalar(16.0f));
  const ir::ValueId high = g.add1(ops("floor"), {g.add1(ops("div"), {f, sixteen})});
  const ir::ValueId low = g.add1(ops("sub"), {f, g.add1(ops("mul"), {high, sixteen})});
  const ir::ValueId blocks = ints(g, {n, k / 32, 1, 16});
  const ir::ValueId both =
      g.add1(ops("concat"), {g.add1(ops("reshape"), {low, blocks}), g.add1(ops("reshape"), {high, blocks})},
             {{"axis", int64_t{2}}});
  return g.add1(ops("reshape"), {both, shape});
}

const ir::OpDef& op(const char* name) { return table().need(name); }
ir::ValueId operand(const ir::Node& node, size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; }
ir::ValueId as_f32(ir::Graph& g, ir::ValueId id) { return g.add1(op("cast"), {id}, {{"to", int64_t{1}}}); }

/// The weights as f32 [n, k]; operand `at` holds the codes, followed by scale and zero point.
ir::ValueId as_floats(ir::Graph& g, const ir::Node& node, size_t at) {
  const ir::ValueId w = node.in[at], zeros = operand(node, at + 2);
  const WeightForm form = weight_form(node.attrs, g.type(w).dtype, zeros != ir::kNoValue);
  if (!form.has_scales()) return as_f32(g, w);
  const tensor::Dims dims = g.type(w).shape.to_dims();
  const int64_t n = dims[0], k = form.type == DType::u8 ? dims[1] * 8 / form.bits : dims[1];
  const int64_t groups = k / form.group;
  const ir::ValueId apart = ints(g, {n, groups, 1});
  const ir::ValueId scale = g.add1(op("reshape"), {operand(node, at + 1), apart});
  ir::ValueId codes = ir::kNoValue;
  if (form.type == DType::u8) {
    ir::ValueId zero = g.add_constant(tensor::Tensor::scalar(static_cast<float>(default_zero(form.bits))));
    if (form.asymmetric) zero = g.add1(op("reshape"), {as_f32(g, zeros), apart});
    codes = g.add1(op("sub"), {unpacked(g, w, form, dims), zero});
  } else {
    codes = g.add1(op("reshape"), {as_f32(g, w), ints(g, {n, groups, form.group})});
  }
  return g.add1(op("reshape"), {g.add1(op("mul"), {codes, scale}), ints(g, {n, k})});
}

std::vector<ir::ValueId> expand(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  const ir::ValueId w = as_floats(g, node, kWoWeights);
  ir::ValueId x = node.in[kWoX];
  const bool is_f32 = g.type(x).dtype == DType::f32;
  if (!is_f32) x = as_f32(g, x);
  ir::ValueId y =
      g.add1(op("matmul"), {x, g.add1(op("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}})});
  if (const ir::ValueId bias = operand(node, kWoBias); bias != ir::kNoValue)
    y = g.add1(op("add"), {y, is_f32 ? bias : as_f32(g, bias)});
  if (!is_f32) y = g.add1(op("cast_like"), {y, node.in[kWoX]});
  return {y};
}

std::vector<ir::ValueId> expand_dequantize(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;
  const ir::ValueId w = as_floats(g, node, kDqWeights), order = operand(node, kDqOrder);
  if (order == ir::kNoValue) return {w};
  return {g.add1(op("gather"), {w, order}, {{"axis", int64_t{1}}})};
}

/// Cuts rows of weights, or their columns between groups, which gives each rank a partial sum.
ir::CutRule rows_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kWoX].shape.rank() - 1);
  CutNotation notation(n);
  notation.in(kWoX, rows + "y").in(kWoWeights, "zy").in(kWoScale, "zy").in(kWoZero, "zy");
  const WeightForm form = weight_form(n.attrs, n.in[kWoWeights].dtype, n.present(kWoZero));
  constexpr int64_t kLeast = 32;  // columns of weights that have no groups
  const int64_t k = n.in_dims(kWoWeights)[1] * 8 / (form.type == DType::u8 ? form.bits : 8);
  return {.notation = notation.in(kWoBias, "z").out(0, rows + "z").text(),
          .sums = "y",
          .added = 1u << kWoBias,
          .units = {{'y', k / (form.has_scales() ? form.group : kLeast)}}};
}

ir::CutRule dequantize_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  notation.in(kDqWeights, "a.").in(kDqScale, "a.").in(kDqZero, "a.");
  return {.notation = notation.out(0, "a.").text()};
}

ir::AttrSpec bits_attr() { return {"bits", kWeightBitsKind, "of weights in u8: 8 or 4"}; }

ir::OpSchema linear_schema() {
  return {
      .name = "weight_only_linear",
      .doc =
          "y = x W' + bias with W [n, k] stored in 4, 8 or 16 bits: operands x [..., k], weights u8 [n, k "
          "bits / 8], f8e4m3fn, bf16 or f16 [n, k], scale f32 [n, k / group] but for 16 bits, zero i8 "
          "like scale, bias [n] of x's type; W = scale (q - zero)",
      .is_product = true,
      .cut = rows_cut,
      .min_in = 2,
      .max_in = 5,
      .attrs = {bits_attr(), {"group", "int", "weights that share a scale: 32, 64, 128"}},
      .infer = infer,
      .expand = expand,
      .cost = cost,
      .why_no_grad = "its weights are stored"};
}

ir::OpSchema dequantize_schema() {
  return {
      .name = "dequantize_weights",
      .doc =
          "y [n, k] = the numbers that stored weights stand for, as f32: operands w, scale and zero as of "
          "weight_only_linear with groups of any length, order i32 [k]: column j of y is the order[j]-th "
          "stored one",
      .cut = dequantize_cut,
      .min_in = 1,
      .max_in = 4,
      .attrs = {bits_attr(),
                {"group", "int", "weights that share a scale"},
                {"from", "string", "how the file has them, for people"}},
      .infer = infer_dequantize,
      .expand = expand_dequantize,
      .cost = dequantize_cost,
      .why_no_grad = "its weights are stored"};
}

}  // namespace

int64_t check_stored_weights(const ir::NodeView& n, size_t w_at, const WeightForm& form) {
  const tensor::Shape& w = n.in[w_at].shape;
  base::require(w.is_static() && w.rank() == 2, "weights are [n, bytes], not ", w.to_string());
  const int64_t k = form.type == DType::u8 ? w[1].value() * 8 / form.bits : w[1].value();
  if (!form.has_scales()) {
    base::require(!n.present(w_at + 1) && !n.present(w_at + 2), "weights in ", name_of(form.type),
                  " have neither scales nor zero points");
    return k;
  }
  base::require(n.present(w_at + 1) && n.in[w_at + 1].dtype == DType::f32,
                "stored weights have scales in f32");
  const tensor::Shape& scale = n.in[w_at + 1].shape;
  base::require(scale.is_static() && scale.rank() == 2, "scales are [n, groups], not ", scale.to_string());
  base::require(form.group > 0 && k % form.group == 0, "groups of ", form.group, " weights in rows of ", k);
  base::require(scale[0] == w[0] && scale[1].value() == k / form.group, "scales ", scale.to_string(),
                " for weights ", w.to_string());
  if (n.present(w_at + 2))
    base::require(
        form.type == DType::u8 && n.in[w_at + 2].dtype == DType::i8 && n.in[w_at + 2].shape == scale,
        "zero points ", n.in[w_at + 2].shape.to_string());
  return k;
}

WeightOnlyExtents weight_only_extents(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(kWoX);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.size(); ++d) rows *= x[d];
  return {.rows = rows,
          .n = node.in_dims(kWoWeights)[0],
          .k = x.back(),
          .form = weight_form(node.attrs, node.in[kWoWeights].dtype, node.present(kWoZero))};
}

DequantizeExtents dequantize_extents(const ir::NodeView& node) {
  const tensor::Dims w = node.in_dims(kDqWeights);
  const WeightForm form = weight_form(node.attrs, node.in[kDqWeights].dtype, node.present(kDqZero));
  return {.n = w[0], .k = form.type == DType::u8 ? w[1] * 8 / form.bits : w[1], .form = form};
}

std::vector<ir::OpDef> weight_only_ops() {
  return {{linear_schema(), weight_only_linear_cpu_kernels()},
          {dequantize_schema(), dequantize_weights_cpu_kernels()}};
}

}  // namespace trireme::ops
