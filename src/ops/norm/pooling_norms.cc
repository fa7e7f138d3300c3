// add_layer_norm, masked_mean_pool, l2_normalize: operations around and after the blocks of text encoders,
// each in one pass.
#include "ops/norm/norm_cuts.h"
#include "ops/norm/norm_kernels.h"
#include "ops/norm/norm_rules.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;
using tensor::TensorType;

ir::ValueId axes_constant(ir::Graph& g, std::vector<int64_t> axes) {
  const int64_t n = static_cast<int64_t>(axes.size());
  return g.add_constant(Tensor::from<int64_t>({n}, std::span<const int64_t>(axes)));
}

ir::ValueId floor_constant(ir::Graph& g, DType type, double value) {
  return g.add_constant(
      tensor::visit_dtype(type, [&](auto t) { return Tensor::scalar(static_cast<decltype(t)>(value)); }));
}

ir::OpSchema add_layer_norm() {
  return {.name = "add_layer_norm",
          .doc =
              "layer_norm(x + residual) over the last axis; operands x, residual, scale, bias; second "
              "result: the sum",
          .precision = kStatistics,
          .cut = add_layer_norm_cut,
          .min_in = 3,
          .max_in = 4,
          .max_out = 2,
          .attrs = {{"epsilon", "float", "added to the variance, default 1e-5"}},
          .infer =
              [](const ir::NodeView& n) {
                const bool both = n.in[0].shape.is_static() && n.in[1].shape.is_static();
                base::require(!both || n.in[0].shape == n.in[1].shape, "add_layer_norm of ",
                              n.in[0].shape.to_string(), " and ", n.in[1].shape.to_string());
                return std::vector<TensorType>{n.in[0], n.in[0]};
              },
          .expand =
              [](ir::Graph& g, const ir::Node& node) {
                const ir::ValueId sum = g.add1(table().need("add"), {node.in[0], node.in[1]});
                std::vector<ir::ValueId> in{sum, node.in[2]};
                if (node.in.size() > 3) in.push_back(node.in[3]);
                const double epsilon = node.attrs.get_float("epsilon", 1e-5);
                const ir::ValueId y = g.add1(table().need("layer_norm"), in, {{"epsilon", epsilon}});
                std::vector<ir::ValueId> out{y, sum};
                out.resize(node.out.size());
                return out;
              },
          .cost =
              [](const ir::NodeView& n) {
                const double bytes = static_cast<double>(tensor::bytes_of(n.in[0]));
                return ir::Cost{.flop = 9.0 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                                .bytes = bytes * (2.0 + static_cast<double>(n.out.size()))};
              },
          .grad = add_layer_norm_gradient()};
}

ir::OpSchema masked_mean_pool() {
  return {.name = "masked_mean_pool",
          .doc =
              "y[b] = sum over t of mask[b, t] x[b, t] / max(sum over t of mask[b, t], 1e-9); x [b, t, d], "
              "mask [b, t]",
          .precision = kSumsMany,
          .cut = masked_mean_pool_cut,
          .min_in = 2,
          .max_in = 2,
          .infer =
              [](const ir::NodeView& n) {
                const Shape& x = n.in[0].shape;
                if (!x.has_rank()) return std::vector<TensorType>{{n.in[0].dtype, Shape::unknown(2)}};
                base::require(x.rank() == 3 && (!n.in[1].shape.has_rank() || n.in[1].shape.rank() == 2),
                              "masked_mean_pool of ", x.to_string(), " with mask ",
                              n.in[1].shape.to_string());
                return std::vector<TensorType>{{n.in[0].dtype, Shape{x[0], x[2]}}};
              },
          .expand =
              [](ir::Graph& g, const ir::Node& node) {
                const DType type = g.type(node.in[0]).dtype;
                const ir::ValueId mask = g.add1(table().need("cast_like"), {node.in[1], node.in[0]});
                const ir::ValueId column = g.add1(table().need("unsqueeze"), {mask, axes_constant(g, {2})});
                const ir::ValueId kept = g.add1(table().need("mul"), {node.in[0], column});
                const ir::ValueId axis = axes_constant(g, {1});
                const ir::Attrs drop{{"keepdims", int64_t{0}}};
                const ir::ValueId sum = g.add1(table().need("reduce_sum"), {kept, axis}, drop);
                const ir::ValueId count = g.add1(table().need("reduce_sum"), {column, axis}, drop);
                const ir::ValueId floor = floor_constant(g, type, 1e-9);
                const ir::ValueId divisor = g.add1(table().need("max"), {count, floor});
                return std::vector{g.add1(table().need("div"), {sum, divisor})};
              },
          .cost =
              [](const ir::NodeView& n) {
                return ir::Cost{
                    .flop = 2.0 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                    .bytes = static_cast<double>(tensor::bytes_of(n.in[0]) + tensor::bytes_of(n.out[0]))};
              },
          .grad = masked_mean_pool_gradient()};
}

ir::OpSchema l2_normalize() {
  return {.name = "l2_normalize",
          .doc = "y = x / max(sqrt(sum x^2), epsilon) over the last axis",
          .precision = kStatistics,
          .cut = lp_norm_cut,
          .attrs = {{"epsilon", "float", "default 1e-12"}},
          .infer = [](const ir::NodeView& n) { return std::vector{n.in[0]}; },
          .expand =
              [](ir::Graph& g, const ir::Node& node) {
                const ir::ValueId x = node.in[0], square = g.add1(table().need("mul"), {x, x});
                const ir::ValueId axis = axes_constant(g, {-1});
                const ir::ValueId sum =
                    g.add1(table().need("reduce_sum"), {square, axis}, {{"keepdims", int64_t{1}}});
                const ir::ValueId norm = g.add1(table().need("sqrt"), {sum});
                const double epsilon = node.attrs.get_float("epsilon", 1e-12);
                const ir::ValueId floor = floor_constant(g, g.type(x).dtype, epsilon);
                const ir::ValueId divisor = g.add1(table().need("max"), {norm, floor});
                return std::vector{g.add1(table().need("div"), {x, divisor})};
              },
          .grad = l2_normalize_gradient()};
}

}  // namespace

std::vector<ir::OpDef> pooling_norms_ops() {
  return {{add_layer_norm(), add_layer_norm_cpu_kernels()},
          {masked_mean_pool(), masked_mean_pool_cpu_kernels()},
          {l2_normalize(), l2_normalize_cpu_kernels()}};
}

}  // namespace trireme::ops
