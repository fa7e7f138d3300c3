// Gradient rules of resize, upsample, grid_sample and affine_grid.
#include "ops/grad.h"
#include "ops/image/image_kernels.h"

namespace trireme::ops {
namespace {

Gradients sampling_rule(GradBuilder& g, bool is_upsample) {
  Gradients out = g.none();
  std::vector<ValueId> in{g.grad()};
  for (size_t i = 1; i < out.size(); ++i) in.push_back(g.in(i));
  ir::Attrs attrs = g.attrs();
  attrs.set("shape", g.dims(g.in(0)));
  attrs.set("upsample", int64_t{is_upsample});
  out[0] = g.op("resize_grad", in, attrs);
  return out;
}

}  // namespace

Gradients resize_rule(GradBuilder& g) { return sampling_rule(g, false); }
Gradients upsample_rule(GradBuilder& g) { return sampling_rule(g, true); }

Gradients grid_sample_rule(GradBuilder& g) {
  ir::Attrs attrs = g.attrs();
  const ValueId dgrid = g.op("grid_sample_grad_grid", {g.grad(), g.in(0), g.in(1)}, attrs);
  attrs.set("shape", g.dims(g.in(0)));
  return {g.op("grid_sample_grad_x", {g.grad(), g.in(1)}, attrs), dgrid};
}

/// The grid is linear in theta: dtheta = dy^T [coordinates, 1], where the coordinates are the grid of the
/// identity.
Gradients affine_grid_rule(GradBuilder& g) {
  const tensor::Dims theta = g.dims(g.in(0)), y = g.dims(g.grad());
  const int64_t axes = theta[1], points = tensor::element_count(y) / std::max<int64_t>(1, y[0] * axes);
  tensor::Tensor identity = tensor::Tensor::empty(g.type(g.in(0)).dtype, {1, axes, axes + 1});
  tensor::visit_dtype(identity.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto data = identity.mutable_data<T>();
    for (int64_t i = 0; i < axes * (axes + 1); ++i)
      data[static_cast<size_t>(i)] = static_cast<T>(i % (axes + 2) == 0 ? 1.0f : 0.0f);
  });
  std::vector<int64_t> size = g.known(1)->to_ints();
  size[0] = 1;
  const ValueId grid = g.op("affine_grid", {g.constant(identity), g.ints(size)}, g.attrs());
  const ValueId ones = g.expand(g.scalar(1, g.in(0)), {points, 1});
  const ValueId base = g.op("concat", {g.reshape(grid, {points, axes}), ones}, {{"axis", int64_t{1}}});
  const ValueId dy = g.transpose(g.reshape(g.grad(), {y[0], points, axes}), {0, 2, 1});
  return {g.op("matmul", {dy, base}), std::nullopt};
}

}  // namespace trireme::ops
