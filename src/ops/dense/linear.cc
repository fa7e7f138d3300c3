// linear: a product with a weight matrix, with bias, residual and activation in one pass over the result.
#include "ops/dense/activation.h"
#include "ops/dense/dense_cuts.h"
#include "ops/grad.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;

std::vector<tensor::TensorType> infer_linear(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &w = n.in[1].shape;
  activation_of(n.attrs);
  if (!x.has_rank() || !w.has_rank()) return {{n.in[0].dtype, Shape::unknown_rank()}};
  base::require(x.rank() >= 1 && w.rank() == 2, "linear takes [..., k] and a matrix, got ", x.to_string(),
                " and ", w.to_string());
  const size_t t = n.attrs.get_int("transposed", 0) != 0;
  const Dim &k = x[x.rank() - 1], &wk = w[t], &wn = w[1 - t];
  base::require(!k.is_static() || !wk.is_static() || k == wk, "inner extents differ: ", x.to_string(),
                " and ", w.to_string());
  std::vector<Dim> out = x.dims();
  out.back() = wn;
  if (n.present(2) && n.in[2].shape.is_static() && wn.is_static()) {
    base::require(n.in[2].shape == Shape{wn}, "bias of shape ", n.in[2].shape.to_string(), " for ",
                  wn.value(), " columns");
  }
  const Shape y(std::move(out));
  if (n.present(3) && n.in[3].shape.is_static() && y.is_static()) {
    base::require(n.in[3].shape == y, "residual of shape ", n.in[3].shape.to_string(), " for a result ",
                  y.to_string());
  }
  return {{n.in[0].dtype, y}, {n.in[0].dtype, y}};
}

std::vector<ir::ValueId> expand_linear(ir::Graph& g, const ir::Node& node) {
  ir::ValueId w = node.in[1];
  if (node.attrs.get_int("transposed", 0) != 0) {
    w = g.add1(table().need("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  }
  ir::ValueId y = g.add1(table().need("matmul"), {node.in[0], w});
  auto operand = [&](size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; };
  if (operand(2) != ir::kNoValue) y = g.add1(table().need("add"), {y, operand(2)});
  const ActivationSpec act = activation_of(node.attrs);
  if (node.out.size() < 2) return {expand_finish(g, y, operand(3), act)};
  const bool is_inside = operand(3) != ir::kNoValue && !act.before_residual;
  const ir::ValueId z = is_inside ? g.add1(table().need("add"), {y, operand(3)}) : y;
  return {expand_finish(g, z, is_inside ? ir::kNoValue : operand(3), act), z};
}

ir::Cost linear_cost(const ir::NodeView& n) {
  ir::Cost c;
  for (size_t i = 0; i < n.in.size(); ++i)
    c.bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  for (const tensor::TensorType& t : n.out) c.bytes += static_cast<double>(tensor::bytes_of(t));
  c.flop = 2.0 * static_cast<double>(n.in_dims(0).back()) *
           static_cast<double>(n.out[0].shape.elements().value_or(0));
  return c;
}

/// Whether the derivative follows from the result: act'(z) = act'(act(z)).
bool derivative_from_result(const ActivationSpec& s) {
  return s.kind == ActivationKind::relu || (s.kind == ActivationKind::leaky && s.alpha > 0);
}

/// The attributes that the products of the gradient share with the forward product.
ir::Attrs product_attrs(const ir::Attrs& attrs) {
  ir::Attrs out{{"transposed", attrs.get_int("transposed", 0)}};
  if (attrs.get_int("float8", 0) != 0) out.set("float8", int64_t{1});
  return out;
}

/// The gradient of the activation's argument. If the argument is not a result, curved activations recompute
/// the product; passes avoid this by not fusing them before differentiation.
ValueId argument_gradient(GradBuilder& g, const ActivationSpec& act, bool residual_inside) {
  if (act.kind == ActivationKind::none) return g.grad();
  ValueId z = g.out();
  if (g.results() > 1 && g.out(1) != ir::kNoValue) {
    z = g.out(1);
  } else if (!derivative_from_result(act) || (g.has(3) && act.before_residual)) {
    std::vector<ValueId> in{g.in(0), g.in(1), g.in(2), residual_inside ? g.in(3) : ir::kNoValue};
    while (in.back() == ir::kNoValue) in.pop_back();
    z = g.op("linear", std::move(in), product_attrs(g.attrs()));
  }
  return expand_slope(g.graph(), g.grad(), z, act);
}

/// The gradient of the argument from both gradients that arrive: by the result and by the argument itself.
ValueId summed_gradient(GradBuilder& g, const ActivationSpec& act, bool residual_inside) {
  if (g.grad(1) == ir::kNoValue) return argument_gradient(g, act, residual_inside);
  if (g.grad(0) == ir::kNoValue) return g.grad(1);
  return g.add(argument_gradient(g, act, residual_inside), g.grad(1));
}

Gradients linear_gradients(GradBuilder& g) {
  const ActivationSpec act = activation_of(g.attrs());
  const bool residual_inside = g.has(3) && !act.before_residual;
  const ValueId dz = summed_gradient(g, act, residual_inside);
  const ir::Attrs attrs = product_attrs(g.attrs());
  Gradients out = g.none();
  out[0] = g.op("linear_grad_x", {dz, g.in(1)}, attrs);
  const auto dw = g.ops("linear_grad_w", {g.in(0), dz}, attrs, g.has(2) ? 2 : 1);
  out[1] = dw[0];
  if (g.has(2)) out[2] = dw[1];
  if (g.has(3)) out[3] = residual_inside ? dz : g.grad() == ir::kNoValue ? g.zeros_like(g.out()) : g.grad();
  return out;
}

}  // namespace

ir::OpSchema linear_schema() {
  std::vector<ir::AttrSpec> attrs = activation_attrs();
  attrs.push_back({"transposed", "int", "w is [n, k]"});
  attrs.push_back({"float8", "int", "to become a float8_product before it is compiled"});
  return {.name = "linear",
          .doc =
              "y = act(x w + bias + residual), and the activation's argument if it is asked for: operands "
              "x [..., k], w [k, n], bias [n], residual like y",
          .precision = kProduct,
          .dims = "...k,kn,n,...n->...n",
          .sums = "k",
          .cut = linear_cut,
          .min_in = 2,
          .max_in = 4,
          .max_out = 2,
          .attrs = std::move(attrs),
          .infer = infer_linear,
          .expand = expand_linear,
          .cost = linear_cost,
          .grad = rule(linear_gradients)};
}

}  // namespace trireme::ops
