// batch_norm_train and batch_norm_grad: normalisation with the statistics of the batch, including the
// residual and the ReLU that follow it in residual networks.
#include "ops/grad.h"
#include "ops/norm/norm_cuts.h"
#include "ops/norm/norm_kernels.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

/// Results follow x: if it is 16-bit, so are y and the residual (HalfRows::operands), each rounded once;
/// scale, bias and statistics stay f32.
constexpr ir::PrecisionRule kNormalises{PrecisionKind::follows, "rounds once, statistics in f32", 1};

std::vector<ir::AttrSpec> attrs() {
  return {{"axis", "int", "the channel axis, default 1"},
          {"epsilon", "float", "added to the variance, default 1e-5"},
          {"activation", "string", "none or relu, default none"}};
}

Dim channels_of(const ir::NodeView& n, const Shape& x) {
  const std::string activation = n.attrs.get_string("activation", "none");
  base::require(activation == "none" || activation == "relu", "batch norm fuses no activation '", activation,
                "'");
  if (!x.has_rank()) return Dim::unknown();
  base::require(x.rank() >= 2, "batch norm of ", x.to_string(), ", which has no channel axis");
  return x[ir::normal_axis(n.attrs.get_int("axis", 1), x.rank())];
}

void require_channel_vector(const ir::NodeView& n, size_t i, const Dim& channels) {
  const Shape& given = n.in[i].shape;
  if (!given.is_static() || !channels.is_static()) return;
  base::require(given == Shape{channels}, "operand ", i, " is ", given.to_string(), " for ", channels.value(),
                " channels");
}

void require_shape(const ir::NodeView& n, size_t i, const Shape& x) {
  if (!n.present(i) || !n.in[i].shape.is_static() || !x.is_static()) return;
  base::require(n.in[i].shape == x, "operand ", i, " is ", n.in[i].shape.to_string(), " beside ",
                x.to_string());
}

/// Statistics have at least the precision of f32.
TensorType statistic(const ir::NodeView& n, const Dim& channels) {
  return {n.in[0].dtype == DType::f64 ? DType::f64 : DType::f32, Shape{channels}};
}

ir::CostFn batch_norm_train_cost(double flop) {
  return [flop](const ir::NodeView& n) {
    // x is read twice: once for the sums and once to write the result.
    const double x = static_cast<double>(tensor::bytes_of(n.in[0]));
    ir::Cost c{.flop = flop * static_cast<double>(n.in[0].shape.elements().value_or(0)), .bytes = x};
    for (const auto* types : {&n.in, &n.out}) {
      for (const TensorType& t : *types) c.bytes += static_cast<double>(tensor::bytes_of(t));
    }
    return c;
  };
}

/// The results of batch_norm_grad are dx, dscale, dbias, dresidual.
Gradients train_rule(ir::Graph& graph, const ir::Node& node, std::span<const ValueId> out_grads) {
  GradBuilder g(graph, node, out_grads);
  for (size_t i = 1; i < out_grads.size(); ++i) {
    if (out_grads[i] != ir::kNoValue) {
      base::fail_unsupported("a gradient flows into a batch statistic (result ", i, ")");
    }
  }
  const bool relu = g.attrs().get_string("activation", "none") == "relu", residual = g.has(3);
  const auto saved = [&](size_t i) {
    return i < node.out.size() && node.out[i] != ir::kNoValue ? node.out[i] : ir::kNoValue;
  };
  ValueId y = saved(0), mean = saved(1), inv_std = saved(2);
  if (mean == ir::kNoValue || inv_std == ir::kNoValue) {
    const auto again = g.ops("batch_norm_train", node.in, g.attrs(), 3);
    y = again[0], mean = again[1], inv_std = again[2];
  }
  const bool masks_residual = relu && residual;
  std::vector<ValueId> in{g.grad(0), g.in(0), g.in(1), g.in(2), mean, inv_std};
  if (masks_residual) in.push_back(y);
  const auto results = g.ops("batch_norm_grad", std::move(in), g.attrs(), masks_residual ? 4 : 3);
  Gradients out = g.none();
  for (size_t i = 0; i < 3; ++i) out[i] = results[i];
  if (residual) out[3] = relu ? results[3] : g.grad(0);
  return out;
}

ir::OpSchema train_schema() {
  ir::OpSchema s{
      .name = "batch_norm_train",
      .doc =
          "y = activation((x - mean) inv_std scale + bias + residual) with mean and inv_std = 1 / "
          "sqrt(var + epsilon) of the batch per channel; further results: mean, inv_std, unbiased variance",
      .precision = kNormalises,
      .half_rows = {.operands = 0b1001},
      .cut = batch_norm_train_cut,
      .min_in = 3,
      .max_in = 4,
      .max_out = 4,
      .attrs = attrs(),
      .infer = [](const ir::NodeView& n) {
        const Dim channels = channels_of(n, n.in[0].shape);
        for (size_t i : {1, 2}) require_channel_vector(n, i, channels);
        require_shape(n, 3, n.in[0].shape);
        const TensorType vector = statistic(n, channels);
        return std::vector<TensorType>{n.in[0], vector, vector, vector};
      }};
  s.cost = batch_norm_train_cost(9);
  s.grad = train_rule;
  return s;
}

ir::OpSchema grad_schema() {
  ir::OpSchema s{
      .name = "batch_norm_grad",
      .doc =
          "with g = dy where the rectifier let through: dx = scale inv_std (g - mean(g) - xhat mean(g "
          "xhat)), dscale = sum g xhat, dbias = sum g, dresidual = g; operands dy, x, scale, bias, mean, "
          "inv_std, y where a residual was rectified too, and a second part of dy",
      .cut = batch_norm_grad_cut,
      .min_in = 6,
      .max_in = 8,
      .max_out = 4,
      .attrs = attrs(),
      .infer = [](const ir::NodeView& n) {
        const Dim channels = channels_of(n, n.in[1].shape);
        for (size_t i : {2, 3, 4, 5}) require_channel_vector(n, i, channels);
        for (size_t i : {0, 6, 7}) require_shape(n, i, n.in[1].shape);
        return std::vector<TensorType>{n.in[1], n.in[2], n.in[3], n.in[1]};
      }};
  s.cost = batch_norm_train_cost(14);
  s.why_no_grad = "second derivatives of batch statistics are not computed";
  return s;
}

}  // namespace

std::vector<ir::OpDef> batch_norm_training_ops() {
  return {{train_schema(), batch_norm_train_cpu_kernels()}, {grad_schema(), batch_norm_grad_cpu_kernels()}};
}

}  // namespace trireme::ops
