// Norms for which devices have no kernel, in simpler ops: sums over axes and elementwise functions.
#include "ops/norm/norms_expand.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// x in the type of the statistics: f64 if x is f64, else f32.
ValueId widened(GradBuilder& g, ValueId x) {
  const DType type = g.type(x).dtype;
  const ir::Attrs to_f32{{"to", int64_t{1}}};
  return type == DType::f64 || type == DType::f32 ? x : g.op("cast", {x}, to_f32);
}
ValueId narrowed(GradBuilder& g, ValueId y, ValueId like) {
  return g.type(y).dtype == g.type(like).dtype ? y : g.op("cast_like", {y, like});
}

}  // namespace

ValueId mean_over(GradBuilder& g, ValueId x, const std::vector<int64_t>& axes) {
  return g.op("reduce_mean", {x, g.ints(axes)}, {{"keepdims", int64_t{1}}});
}

ValueId as_channels(GradBuilder& g, ValueId vector, const Dims& x) {
  Dims shape(x.size() > 1 ? x.size() - 1 : 1, 1);
  shape[0] = tensor::element_count(g.dims(vector));
  return g.reshape(vector, shape);
}

std::vector<ValueId> expand_lp_norm(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const ValueId x = widened(g, g.in(0));
  const std::string_view sum = g.attrs().get_int("p", 2) == 2 ? "reduce_l2" : "reduce_l1";
  const ValueId norm = g.op(sum, {x, g.ints({g.attrs().get_int("axis", -1)})}, {{"keepdims", int64_t{1}}});
  const ValueId is_zero = g.op("equal", {norm, g.scalar(0, norm)});
  return {narrowed(g, g.op("where", {is_zero, g.scalar(0, x), g.div(x, norm)}), g.in(0))};
}

std::vector<ValueId> expand_mean_variance_norm(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const std::vector<int64_t> axes = g.attrs().get_ints("axes", {0, 2, 3});
  const ValueId x = widened(g, g.in(0));
  const ValueId d = g.sub(x, mean_over(g, x, axes));
  const ValueId deviation = g.op("sqrt", {mean_over(g, g.mul(d, d), axes)});
  return {narrowed(g, g.div(d, g.plus(deviation, 1e-9)), g.in(0))};
}

/// With training_mode, normalises by mean and (biased) variance of the whole batch, which also update the
/// running ones.
std::vector<ValueId> expand_batch_norm(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const Dims dims = g.dims(g.in(0));
  const bool trains = g.attrs().get_int("training_mode", 0) != 0;
  const ValueId x = widened(g, g.in(0));
  ValueId mean = as_channels(g, widened(g, g.in(3)), dims);
  ValueId variance = as_channels(g, widened(g, g.in(4)), dims);
  std::vector<ValueId> results(1, ir::kNoValue);
  if (trains) {
    std::vector<int64_t> axes;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (d != 1 || dims.size() == 1) axes.push_back(static_cast<int64_t>(d));
    }
    const ValueId own = mean_over(g, x, axes), away = g.sub(x, own);
    const ValueId spread = mean_over(g, g.mul(away, away), axes);
    const double keep = g.attrs().get_float("momentum", 0.9);
    const auto moved = [&](ValueId running, ValueId batch, size_t i) {
      const ValueId flat = g.reshape(batch, g.dims(g.in(i)));
      const ValueId old = g.reshape(running, g.dims(g.in(i)));
      return narrowed(g, g.add(g.scaled(old, keep), g.scaled(flat, 1 - keep)), g.in(i));
    };
    results.push_back(moved(mean, own, 3));
    results.push_back(moved(variance, spread, 4));
    mean = own;
    variance = spread;
  } else {
    results.insert(results.end(), {g.in(3), g.in(4)});
  }
  const ValueId deviation = g.op("sqrt", {g.plus(variance, g.attrs().get_float("epsilon", 1e-5))});
  const ValueId scale = g.div(as_channels(g, widened(g, g.in(1)), dims), deviation);
  const ValueId y = g.add(g.mul(g.sub(x, mean), scale), as_channels(g, widened(g, g.in(2)), dims));
  results[0] = narrowed(g, y, g.in(0));
  return results;
}

}  // namespace trireme::ops
