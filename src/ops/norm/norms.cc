// The normalisations: batch, instance, group, layer, RMS, Lp, mean-variance and local response.
#include "ops/norm/norm_cuts.h"
#include "ops/norm/norm_kernels.h"
#include "ops/norm/norm_rules.h"
#include "ops/norm/norms_expand.h"
#include "ops/norm/rounded.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

const ir::AttrSpec kEpsilon{"epsilon", "float", "added to the variance, default 1e-5"};
const ir::AttrSpec kStash{"stash_type", "int", "ONNX type of the statistics; computed in f32 at least"};

std::vector<TensorType> like_x(const ir::NodeView& n) { return {n.in[0]}; }

/// Counts x and y once: statistics need x a second time, but good kernels still have it in cache.
ir::CostFn norm_cost(double flop) {
  return [flop](const ir::NodeView& n) {
    ir::Cost cost{.flop = flop * static_cast<double>(n.in[0].shape.elements().value_or(0))};
    for (const auto* types : {&n.in, &n.out}) {
      for (const TensorType& t : *types) cost.bytes += static_cast<double>(tensor::bytes_of(t));
    }
    return cost;
  };
}

void require_channels(const ir::NodeView& n, size_t first, size_t last) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return;
  base::require(x.rank() >= 1, "normalisation of a scalar");
  const Dim channels = x.rank() > 1 ? x[1] : Dim(1);
  for (size_t i = first; i <= last && i < n.in.size(); ++i) {
    if (!n.in[i].shape.is_static() || !channels.is_static()) continue;
    const int64_t given = n.in[i].shape.elements().value_or(0);
    base::require(given == channels.value(), "operand ", i, " has ", given, " values for ", channels.value(),
                  " channels");
  }
}

ir::OpSchema batch_norm() {
  return {.name = "batch_norm",
          .doc =
              "y = scale (x - mean) / sqrt(var + epsilon) + bias per channel (axis 1); operands x, scale, "
              "bias, mean, "
              "var; with training_mode the batch's statistics, and running mean and variance as results",
          .precision = kStatistics,
          .cut = batch_norm_cut,
          .min_in = 5,
          .max_in = 5,
          .max_out = 3,
          .attrs = {kEpsilon,
                    {"momentum", "float", "weight of the old running statistics, default 0.9"},
                    {"training_mode", "int", "statistics of this batch instead of the given ones"}},
          .infer =
              [](const ir::NodeView& n) {
                require_channels(n, 1, 4);
                return std::vector<TensorType>{n.in[0], n.in[3], n.in[4]};
              },
          .expand = expand_batch_norm,
          .cost = norm_cost(2),
          .grad = batch_norm_gradient(),
          .onnx = "BatchNormalization"};
}

ir::OpSchema instance_norm() {
  return {.name = "instance_norm",
          .doc = "y = scale (x - mean) / sqrt(var + epsilon) + bias, statistics per image and channel",
          .precision = kStatistics,
          .cut = group_norm_cut,
          .min_in = 3,
          .max_in = 3,
          .attrs = {kEpsilon},
          .infer =
              [](const ir::NodeView& n) {
                require_channels(n, 1, 2);
                return like_x(n);
              },
          .cost = norm_cost(6),
          .grad = group_norm_gradient(),
          .onnx = "InstanceNormalization"};
}

ir::OpSchema group_norm() {
  return {
      .name = "group_norm",
      .doc = "y = scale (x - mean) / sqrt(var + epsilon) + bias, statistics per image and group of channels",
      .precision = kStatistics,
      .cut = group_norm_cut,
      .localise = localise_group_norm,
      .min_in = 3,
      .max_in = 3,
      .attrs = {kEpsilon, kStash, {"num_groups", "int", "groups of equal size"}},
      .infer =
          [](const ir::NodeView& n) {
            require_channels(n, 1, 2);
            const Shape& x = n.in[0].shape;
            const int64_t groups = n.attrs.need_int("num_groups");
            base::require(groups >= 1, "num_groups ", groups, " is below 1");
            if (x.has_rank() && x.rank() > 1 && x[1].is_static()) {
              base::require(x[1].value() % groups == 0, x[1].value(), " channels in ", groups, " groups");
            }
            return like_x(n);
          },
      .cost = norm_cost(6),
      .grad = group_norm_gradient(),
      .onnx = "GroupNormalization"};
}

/// The shape of the statistics: axes from `axis` on have extent 1.
Shape statistics_shape(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.has_rank()) return x;
  std::vector<Dim> dims = x.dims();
  for (size_t i = ir::normal_axis(n.attrs.get_int("axis", -1), x.rank()); i < dims.size(); ++i)
    dims[i] = Dim(1);
  return Shape(std::move(dims));
}

/// Checks that scale and bias broadcast to the normalised axes.
void require_columns(const ir::NodeView& n) {
  const Shape& x = n.in[0].shape;
  if (!x.is_static()) return;
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.rank());
  const Shape columns(std::vector<Dim>(x.dims().begin() + static_cast<int64_t>(axis), x.dims().end()));
  for (size_t i = 1; i < n.in.size(); ++i) {
    const Shape& given = n.in[i].shape;
    if (!n.present(i) || !given.is_static()) continue;
    base::require(given.rank() <= columns.rank() && ir::broadcast(columns, given) == columns, "operand ", i,
                  " of shape ", given.to_string(), " does not broadcast to the normalised axes ",
                  columns.to_string());
  }
}

ir::OpSchema layer_norm() {
  return {.name = "layer_norm",
          .doc =
              "y = (x - mean) / sqrt(var + epsilon) scale + bias, statistics over the axes from `axis` on; "
              "further "
              "results: mean and 1 / deviation, y rounded",
          .precision = kStatistics,
          .half_rows = {.operands = 0b1, .rounded = 3},
          .cut = row_norm_cut,
          .min_in = 2,
          .max_in = 3,
          .max_out = 4,
          .attrs = {kEpsilon, kStash, {"axis", "int", "first normalised axis, default -1"}, rounded_attr()},
          .infer =
              [](const ir::NodeView& n) {
                require_columns(n);
                const DType stash = n.in[0].dtype == DType::f64 ? DType::f64 : DType::f32;
                return with_rounded({n.in[0], {stash, statistics_shape(n)}, {stash, statistics_shape(n)}},
                                    n.attrs);
              },
          .cost = norm_cost(8),
          .grad = layer_norm_gradient(),
          .onnx = "LayerNormalization"};
}

ir::OpSchema rms_norm() {
  return {.name = "rms_norm",
          .doc =
              "y = x / sqrt(mean(x^2) + epsilon) scale over the axes from `axis` on (Zhang & Sennrich 2019, "
              "eq. 4); further result: y rounded",
          .precision = kStatistics,
          .half_rows = {.operands = 0b1, .rounded = 1},
          .cut = row_norm_cut,
          .min_in = 2,
          .max_in = 2,
          .max_out = 2,
          .attrs = {kEpsilon, kStash, {"axis", "int", "first normalised axis, default -1"}, rounded_attr()},
          .infer =
              [](const ir::NodeView& n) {
                statistics_shape(n);
                require_columns(n);
                return with_rounded(like_x(n), n.attrs);
              },
          .cost = norm_cost(4),
          .grad = layer_norm_gradient(),
          .onnx = "RMSNormalization"};
}

ir::OpSchema lp_norm() {
  return {.name = "lp_norm",
          .doc = "y = x / p-norm of x along the axis; 0 where the norm is 0",
          .precision = kStatistics,
          .cut = lp_norm_cut,
          .attrs = {{"axis", "int", "default -1"}, {"p", "int", "1 or 2, default 2"}},
          .infer =
              [](const ir::NodeView& n) {
                if (n.in[0].shape.has_rank())
                  ir::normal_axis(n.attrs.get_int("axis", -1), n.in[0].shape.rank());
                const int64_t p = n.attrs.get_int("p", 2);
                base::require(p == 1 || p == 2, "lp_norm has p ", p, ", takes 1 or 2");
                return like_x(n);
              },
          .expand = expand_lp_norm,
          .cost = norm_cost(3),
          .grad = lp_norm_gradient(),
          .onnx = "LpNormalization"};
}

ir::OpSchema mean_variance_norm() {
  return {.name = "mean_variance_norm",
          .doc = "y = (x - mean) / (deviation + 1e-9) with statistics over `axes`",
          .precision = kStatistics,
          .cut = mean_variance_cut,
          .attrs = {{"axes", "ints", "default [0, 2, 3]"}},
          .infer = like_x,
          .expand = expand_mean_variance_norm,
          .cost = norm_cost(6),
          .grad = mean_variance_gradient(),
          .onnx = "MeanVarianceNormalization"};
}

ir::OpSchema lrn() {
  return {.name = "lrn",
          .doc = "y = x / (bias + alpha / size sum of x^2 over `size` neighbouring channels)^beta",
          .precision = kStatistics,
          .cut = lrn_cut,
          .attrs = {{"alpha", "float", "default 1e-4"},
                    {"beta", "float", "default 0.75"},
                    {"bias", "float", "default 1"},
                    {"size", "int", "channels of the window"}},
          .infer =
              [](const ir::NodeView& n) {
                base::require(n.attrs.need_int("size") >= 1, "lrn has size ", n.attrs.need_int("size"));
                base::require(!n.in[0].shape.has_rank() || n.in[0].shape.rank() >= 2, "lrn needs channels");
                return like_x(n);
              },
          .cost = norm_cost(20),
          .grad = lrn_gradient(),
          .onnx = "LRN"};
}

}  // namespace

std::vector<ir::OpDef> norms_ops() {
  return {{batch_norm(), batch_norm_cpu_kernels()},
          {instance_norm(), instance_norm_cpu_kernels()},
          {group_norm(), group_norm_cpu_kernels()},
          {layer_norm(), rounding(layer_norm_cpu_kernels(), 3)},
          {rms_norm(), rounding(rms_norm_cpu_kernels(), 1)},
          {lp_norm(), lp_norm_cpu_kernels()},
          {mean_variance_norm(), mean_variance_norm_cpu_kernels()},
          {lrn(), lrn_cpu_kernels()}};
}

}  // namespace trireme::ops
