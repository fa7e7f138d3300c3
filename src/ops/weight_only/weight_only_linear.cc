// weight_only_linear: schema, and its expansion into plain ops.
#include "ops/cut_notation.h"
#include "ops/weight_only/weight_only.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::DType;

WeightForm form_of(const ir::Attrs& attrs, bool has_zero) {
  return {.bits = static_cast<int>(attrs.get_int("bits", 8)),
          .group = attrs.get_int("group", 64),
          .asymmetric = has_zero};
}

std::vector<tensor::TensorType> infer(const ir::NodeView& n) {
  const tensor::Shape &x = n.in[kWoX].shape, &w = n.in[kWoWeights].shape, &scale = n.in[kWoScale].shape;
  const int64_t bits = n.attrs.get_int("bits", 8);
  base::require(bits == 8 || bits == 4, "weight_only_linear: weights of ", bits, " bits, not 8 or 4");
  const WeightForm form = form_of(n.attrs, n.present(kWoZero));
  base::require(n.in[kWoWeights].dtype == DType::u8 && n.in[kWoScale].dtype == DType::f32,
                "weight_only_linear takes weights as u8 and scales in f32");
  base::require(w.is_static() && w.rank() == 2 && scale.is_static() && scale.rank() == 2,
                "weight_only_linear takes weights [n, bytes] and scales [n, groups]");
  const int64_t k = w[1].value() * 8 / form.bits;
  if (ir::Refusal no = refuse_weight_form(form, k)) base::fail_invalid("weight_only_linear: ", *no);
  base::require(scale[0] == w[0] && scale[1].value() == k / form.group, "scales ", scale.to_string(),
                " for weights ", w.to_string());
  if (n.present(kWoZero))
    base::require(n.in[kWoZero].dtype == DType::i8 && n.in[kWoZero].shape == scale, "zero points ",
                  n.in[kWoZero].shape.to_string());
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

ir::Cost cost(const ir::NodeView& n) {
  ir::Cost c;
  for (size_t i = 0; i < n.in.size(); ++i)
    c.bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  c.bytes += static_cast<double>(tensor::bytes_of(n.out[0]));
  c.flop = 2.0 * static_cast<double>(n.in_dims(kWoX).back()) *
           static_cast<double>(n.out[0].shape.elements().value_or(0));
  return c;
}

ir::ValueId ints(ir::Graph& g, std::vector<int64_t> v) {
  const auto n = static_cast<int64_t>(v.size());
  return g.add_constant(tensor::Tensor::from<int64_t>({n}, v));
}

/// Codes as f32 [n, groups, group].
ir::ValueId unpacked(ir::Graph& g, ir::ValueId w, const WeightForm& form, tensor::Dims dims) {
  const auto ops = [](const char* name) -> const ir::OpDef& { return table().need(name); };
  const int64_t n = dims[0], k = dims[1] * 8 / form.bits;
  const ir::ValueId shape = ints(g, {n, k / form.group, form.group});
  ir::ValueId f = g.add1(ops("cast"), {w}, {{"to", int64_t{1}}});
  if (form.bits == 8) {  // bytes beyond 127 are negative
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

std::vector<ir::ValueId> expand(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // adding nodes moves the original
  const auto operand = [&](size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; };
  const auto ops = [](const char* name) -> const ir::OpDef& { return table().need(name); };
  const WeightForm form = form_of(node.attrs, operand(kWoZero) != ir::kNoValue);
  const tensor::Dims dims = g.type(node.in[kWoWeights]).shape.to_dims();
  const int64_t n = dims[0], k = dims[1] * 8 / form.bits, groups = k / form.group;
  const ir::ValueId apart = ints(g, {n, groups, 1});
  ir::ValueId zero = g.add_constant(tensor::Tensor::scalar(static_cast<float>(default_zero(form.bits))));
  if (form.asymmetric)
    zero = g.add1(ops("reshape"), {g.add1(ops("cast"), {operand(kWoZero)}, {{"to", int64_t{1}}}), apart});
  const ir::ValueId codes = unpacked(g, node.in[kWoWeights], form, dims);
  const ir::ValueId scale = g.add1(ops("reshape"), {node.in[kWoScale], apart});
  const ir::ValueId real = g.add1(ops("mul"), {g.add1(ops("sub"), {codes, zero}), scale});
  const ir::ValueId w = g.add1(ops("reshape"), {real, ints(g, {n, k})});
  ir::ValueId x = node.in[kWoX];
  const DType type = g.type(x).dtype;
  if (type != DType::f32) x = g.add1(ops("cast"), {x}, {{"to", int64_t{1}}});
  ir::ValueId y =
      g.add1(ops("matmul"), {x, g.add1(ops("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}})});
  if (operand(kWoBias) != ir::kNoValue) {
    ir::ValueId bias = operand(kWoBias);
    if (type != DType::f32) bias = g.add1(ops("cast"), {bias}, {{"to", int64_t{1}}});
    y = g.add1(ops("add"), {y, bias});
  }
  if (type != DType::f32) y = g.add1(ops("cast_like"), {y, node.in[kWoX]});
  return {y};
}

/// Weights are stored after a model was cut: they stay whole.
ir::CutRule rows_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kWoX].shape.rank() - 1);
  return {.notation = CutNotation(n).in(kWoX, rows + ".").out(0, rows + ".").text()};
}

}  // namespace

WeightOnlyExtents weight_only_extents(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(kWoX);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.size(); ++d) rows *= x[d];
  return {.rows = rows,
          .n = node.in_dims(kWoWeights)[0],
          .k = x.back(),
          .form = form_of(node.attrs, node.present(kWoZero))};
}

ir::OpSchema weight_only_linear_schema() {
  return {.name = "weight_only_linear",
          .doc =
              "y = x W' + bias with W [n, k] stored in 8 or 4 bits: operands x [..., k], weights u8 [n, k "
              "bits / 8], scale f32 [n, k / group], zero i8 like scale, bias [n] of x's type; W = scale (q - "
              "zero)",
          .cut = rows_cut,
          .min_in = 3,
          .max_in = 5,
          .attrs = {{"bits", "int", "8 or 4"}, {"group", "int", "weights that share a scale: 32, 64, 128"}},
          .infer = infer,
          .expand = expand,
          .cost = cost,
          .why_no_grad = "its weights are whole numbers"};
}

}  // namespace trireme::ops
