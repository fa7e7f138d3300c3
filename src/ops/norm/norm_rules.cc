// Gradient rules of the normalisations: built from primitives where speed does not matter, otherwise with an
// op of their own.
#include "ops/norm/norm_rules.h"

#include "ops/grad.h"
#include "ops/norm/norms_expand.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

ValueId as_channels_of_x(GradBuilder& g, ValueId vector) { return as_channels(g, vector, g.dims(g.in(0))); }

/// Sums `term`, shaped like x, per channel and shapes the result like operand i.
ValueId per_channel(GradBuilder& g, ValueId term, size_t i) {
  return g.reshape(g.reduce_to(term, g.dims(as_channels_of_x(g, g.in(i)))), g.dims(g.in(i)));
}

Gradients batch_norm_rule(GradBuilder& g) {
  if (g.attrs().get_int("training_mode", 0) != 0) {
    base::fail_unsupported("batch_norm in training_mode is differentiated as batch_norm_train");
  }
  const double epsilon = g.attrs().get_float("epsilon", 1e-5);
  const ValueId inverse = g.op("reciprocal", {g.op("sqrt", {g.plus(g.in(4), epsilon)})});
  const ValueId normal = g.mul(g.sub(g.in(0), as_channels_of_x(g, g.in(3))), as_channels_of_x(g, inverse));
  Gradients out = g.none();
  out[0] = g.mul(g.grad(), as_channels_of_x(g, g.mul(g.in(1), inverse)));
  out[1] = per_channel(g, g.mul(g.grad(), normal), 1);
  out[2] = per_channel(g, g.grad(), 2);
  // Statistics may be computed from x: d inverse / d var = -inverse^3 / 2.
  out[3] = g.neg(per_channel(g, *out[0], 3));
  out[4] = g.scaled(g.mul(g.mul(*out[1], g.in(1)), g.mul(inverse, inverse)), -0.5);
  return out;
}

/// A group of an image is a row of layer_norm_grad; the scale, which is per channel, is applied before it.
Gradients group_norm_rule(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
  GradBuilder g(graph, node, out_grads);
  const Dims x = g.dims(g.in(0));
  const int64_t channels = x.size() > 1 ? x[1] : 1;
  const int64_t groups = g.attrs().get_int("num_groups", channels);
  const int64_t rows = x[0] * groups;
  const Dims flat{rows, rows == 0 ? 0 : tensor::element_count(x) / rows};
  const ValueId scaled = g.mul(g.grad(), as_channels_of_x(g, g.in(1)));
  const ir::Attrs row{{"axis", int64_t{-1}}, {"epsilon", g.attrs().get_float("epsilon", 1e-5)}};
  const ValueId dx = g.op("layer_norm_grad", {g.reshape(scaled, flat), g.reshape(g.in(0), flat)}, row);
  const ValueId ones = g.plus(g.zeros_like(g.in(1)), 1), zeros = g.zeros_like(g.in(2));
  const ValueId normal = g.op(node.op_name(), {g.in(0), ones, zeros}, g.attrs());
  Gradients out = g.none();
  out[0] = g.reshape(dx, x);
  out[1] = per_channel(g, g.mul(g.grad(), normal), 1);
  out[2] = per_channel(g, g.grad(), 2);
  return out;
}

/// Adds the gradient node of a layer or RMS norm of `x` with operand `scale_at` as scale; `add` is added to
/// dx. Results: dx, dscale and (if `bias_at` is present) dbias, shaped like the operands.
struct RowNormGrad {
  ValueId dx;
  std::optional<ValueId> dscale, dbias;
};
struct RowNormOperands {
  ValueId x, add;
  size_t scale_at, bias_at;
};

RowNormGrad row_norm_grad(GradBuilder& g, std::string_view op, const RowNormOperands& of,
                          const ir::Attrs& attrs) {
  const Dims x = g.dims(of.x);
  const size_t axis = ir::normal_axis(attrs.get_int("axis", -1), x.size());
  const Dims normalised(x.begin() + static_cast<int64_t>(axis), x.end());
  // Scale and bias may broadcast over the normalised axes.
  const ValueId scale = g.expand(g.in(of.scale_at), normalised);
  const bool has_bias = op == "layer_norm_grad" && g.has(of.bias_at);
  const auto results = g.ops(
      op, {g.grad(), of.x, scale, of.add},
      {{"axis", attrs.get_int("axis", -1)}, {"epsilon", attrs.get_float("epsilon", 1e-5)}}, has_bias ? 3 : 2);
  RowNormGrad out{.dx = results[0], .dscale = g.to_operand(results[1], of.scale_at), .dbias = {}};
  if (has_bias) out.dbias = g.to_operand(results[2], of.bias_at);
  return out;
}

Gradients layer_norm_rule(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
  GradBuilder g(graph, node, out_grads);
  for (size_t i = 1; i < out_grads.size(); ++i) {
    if (out_grads[i] != ir::kNoValue) base::fail_unsupported("a gradient flows into the statistics");
  }
  const std::string_view op = node.op_name() == "rms_norm" ? "rms_norm_grad" : "layer_norm_grad";
  const RowNormGrad d =
      row_norm_grad(g, op, {.x = g.in(0), .add = ir::kNoValue, .scale_at = 1, .bias_at = 2}, g.attrs());
  Gradients out = g.none();
  out[0] = d.dx;
  out[1] = d.dscale;
  if (g.has(2)) out[2] = d.dbias;
  return out;
}

/// Both summands get the gradient of the sum: through the norm, plus the gradient that reaches the sum
/// directly.
Gradients add_layer_norm_rule(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
  GradBuilder g(graph, node, out_grads);
  Gradients out = g.none();
  if (g.grad(0) == ir::kNoValue) {
    out[0] = out[1] = g.grad(1);
    return out;
  }
  const bool saved = node.out.size() > 1 && node.out[1] != ir::kNoValue;
  const ValueId sum = saved ? node.out[1] : g.add(g.in(0), g.in(1));
  ir::Attrs attrs = g.attrs();
  const RowNormGrad d =
      row_norm_grad(g, "layer_norm_grad", {.x = sum, .add = g.grad(1), .scale_at = 2, .bias_at = 3}, attrs);
  out[0] = out[1] = d.dx;
  out[2] = d.dscale;
  if (g.has(3)) out[3] = d.dbias;
  return out;
}

/// y = x / n: dx = (dy - n'(x) sum(dy y)) / n, where n' is y for the 2-norm and sign(x) for the 1-norm; 0
/// where n is 0.
Gradients lp_norm_rule(GradBuilder& g) {
  const ValueId x = g.in(0), y = g.out(), dy = g.grad();
  const std::vector<int64_t> axes{g.attrs().get_int("axis", -1)};
  const bool squares = g.attrs().get_int("p", 2) == 2;
  const ValueId sum = g.reduce_sum(squares ? g.mul(x, x) : g.op("abs", {x}), axes, true);
  const ValueId norm = squares ? g.op("sqrt", {sum}) : sum;
  const ValueId slope = squares ? y : g.op("sign", {x});
  const ValueId dx = g.div(g.sub(dy, g.mul(slope, g.reduce_sum(g.mul(dy, y), axes, true))), norm);
  Gradients out = g.none();
  out[0] = g.op("where", {g.op("equal", {norm, g.scalar(0, norm)}), g.scalar(0, dx), dx});
  return out;
}

/// y = (x - m) / (s + e): dx = (dy - mean dy) / (s + e) - (x - m) mean(dy (x - m)) / (s (s + e)^2).
Gradients mean_variance_rule(GradBuilder& g) {
  const std::vector<int64_t> axes = g.attrs().get_ints("axes", {0, 2, 3});
  const ValueId dy = g.grad(), d = g.sub(g.in(0), mean_over(g, g.in(0), axes));
  const ValueId deviation = g.op("sqrt", {mean_over(g, g.mul(d, d), axes)});
  const ValueId below = g.plus(deviation, 1e-9);
  // In a constant group d is 0; the lower bound avoids 0 / 0.
  const ValueId floor = g.op("max", {deviation, g.scalar(1e-30, deviation)});
  const ValueId product = g.div(mean_over(g, g.mul(dy, d), axes), g.mul(floor, below));
  Gradients out = g.none();
  out[0] = g.div(g.sub(g.sub(dy, mean_over(g, dy, axes)), g.mul(d, product)), below);
  return out;
}

/// dx = (dy - y sum(dy y)) / |x| where |x| > epsilon, else dy / epsilon.
Gradients l2_normalize_rule(GradBuilder& g) {
  const ValueId x = g.in(0), y = g.out(), dy = g.grad();
  const ValueId epsilon = g.scalar(g.attrs().get_float("epsilon", 1e-12), x);
  const ValueId norm = g.op("sqrt", {g.reduce_sum(g.mul(x, x), {-1}, true)});
  const ValueId product = g.reduce_sum(g.mul(dy, y), {-1}, true);
  const ValueId along = g.op("where", {g.op("greater", {norm, epsilon}), product, g.scalar(0, product)});
  Gradients out = g.none();
  out[0] = g.div(g.sub(dy, g.mul(y, along)), g.op("max", {norm, epsilon}));
  return out;
}

/// y = sum m x / c with c = max(sum m, 1e-9): dx = dy m / c, dm = sum over d of dy (x - y) / c.
Gradients masked_mean_pool_rule(GradBuilder& g) {
  const ValueId x = g.in(0), dy = g.grad();
  const Dims in = g.dims(x);
  const Dims row{in[0], 1, in[2]};
  const ValueId mask = g.op("cast_like", {g.in(1), x}), floor = g.scalar(1e-9, x);
  const ValueId count = g.reduce_sum(mask, {1}, true);  // [batch, 1]
  const ValueId up = g.reshape(g.div(dy, g.op("max", {count, floor})), row);
  Gradients out = g.none();
  out[0] = g.mul(up, g.reshape(mask, {in[0], in[1], 1}));
  if (!tensor::is_float(g.type(g.in(1)).dtype)) return out;
  const ValueId pooled = g.op("where", {g.op("greater", {count, floor}), g.out(), g.scalar(0, x)});
  const ValueId dmask = g.reduce_sum(g.mul(up, g.sub(x, g.reshape(pooled, row))), {2}, false);
  out[1] = g.op("cast_like", {dmask, g.in(1)});
  return out;
}

}  // namespace

ir::GradFn masked_mean_pool_gradient() { return rule(masked_mean_pool_rule); }
ir::GradFn batch_norm_gradient() { return rule(batch_norm_rule); }
ir::GradFn group_norm_gradient() { return group_norm_rule; }
ir::GradFn layer_norm_gradient() { return layer_norm_rule; }
ir::GradFn add_layer_norm_gradient() { return add_layer_norm_rule; }
ir::GradFn lp_norm_gradient() { return rule(lp_norm_rule); }
ir::GradFn mean_variance_gradient() { return rule(mean_variance_rule); }
ir::GradFn l2_normalize_gradient() { return rule(l2_normalize_rule); }
ir::GradFn lrn_gradient() {
  return rule([](GradBuilder& g) -> Gradients {
    Gradients out = g.none();
    out[0] = g.op("lrn_grad", {g.grad(), g.in(0)}, g.attrs());
    return out;
  });
}

}  // namespace trireme::ops
