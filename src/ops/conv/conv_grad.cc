// Gradient rules of conv and conv_transpose in ONNX layout: each op computes the other's gradient towards x.
#include "ops/conv/conv_grad.h"

#include "ops/conv/transpose_window.h"

namespace trireme::ops {

using tensor::Dims;

ir::Attrs explicit_window(const Window& window, size_t rank, int64_t group, bool exact) {
  std::vector<int64_t> strides, dilations, begin, end;
  for (size_t i = 3 - rank; i < 3; ++i) {
    const WindowAxis& a = window[i];
    strides.push_back(a.stride);
    dilations.push_back(a.dilation);
    begin.push_back(a.pad_begin);
    end.push_back(exact ? (a.out - 1) * a.stride + a.reach() - a.in - a.pad_begin : a.pad_end);
  }
  begin.insert(begin.end(), end.begin(), end.end());
  return {{"strides", strides}, {"dilations", dilations}, {"pads", begin}, {"group", group}};
}

Window window_of(const ir::Attrs& attrs, const Dims& x, const Dims& w) {
  return make_window(attrs, {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()});
}

ir::Cost conv_grad_cost(const ir::NodeView& node, double taps, size_t dy) {
  ir::Cost cost;
  for (const tensor::TensorType& t : node.in) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  cost.bytes += static_cast<double>(tensor::bytes_of(node.out[0]));
  cost.flop = 2 * taps * static_cast<double>(node.in[dy].shape.elements().value_or(0));
  return cost;
}

namespace {

/// Sums dy [n, c, spatial...] to [c].
ValueId bias_gradient(GradBuilder& g, ValueId dy) {
  std::vector<int64_t> axes;
  for (size_t i = 0; i < g.dims(dy).size(); ++i) {
    if (i != 1) axes.push_back(static_cast<int64_t>(i));
  }
  return g.reduce_sum(dy, axes, false);
}

ir::Attrs with_kernel(ir::Attrs attrs, const Dims& w) {
  attrs.set("kernel_shape", std::vector<int64_t>(w.begin() + 2, w.end()));
  return attrs;
}

}  // namespace

Gradients conv_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0)), w = g.dims(g.in(1));
  const ir::Attrs attrs = explicit_window(window_of(g.attrs(), x, w), x.size() - 2,
                                          g.attrs().get_int("group", 1), /*exact=*/true);
  Gradients out = g.none();
  out[0] = g.op("conv_transpose", {g.grad(), g.in(1)}, attrs);
  out[1] = g.op("conv_grad_w", {g.in(0), g.grad()}, with_kernel(attrs, w));
  if (g.has(2)) out[2] = bias_gradient(g, g.grad());
  return out;
}

Gradients conv_transpose_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0)), w = g.dims(g.in(1));
  // The node is the gradient of a convolution whose input is the node's result, so in and out are exchanged.
  Window window = transpose_window(g.attrs(), {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()});
  for (WindowAxis& a : window.axes) std::swap(a.in, a.out);
  const ir::Attrs attrs =
      explicit_window(window, x.size() - 2, g.attrs().get_int("group", 1), /*exact=*/true);
  Gradients out = g.none();
  out[0] = g.op("conv", {g.grad(), g.in(1)}, attrs);
  out[1] = g.op("conv_grad_w", {g.grad(), g.in(0)}, with_kernel(attrs, w));
  if (g.has(2)) out[2] = bias_gradient(g, g.grad());
  return out;
}

}  // namespace trireme::ops
