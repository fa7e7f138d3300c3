// qlinear_matmul, conv_integer and qlinear_conv in simpler ops. For nodes whose scales are not constant;
// passes turn the others into 8-bit products.
#include "ops/quant/quants_expand.h"

#include "ops/conv/window.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// x, cast to f64.
ValueId exact(GradBuilder& g, ValueId x) { return g.op("cast", {x}, {{"to", int64_t{11}}}); }

/// x minus its zero point in f64, or x if there is none; `shape` makes the zero point broadcast.
ValueId centred(GradBuilder& g, ValueId x, size_t zero, const Dims& shape = {}) {
  if (!g.has(zero)) return exact(g, x);
  const ValueId z = exact(g, g.in(zero));
  const bool is_one = tensor::element_count(g.dims(z)) == 1;
  return g.sub(exact(g, x), g.reshape(z, is_one ? Dims{} : shape));
}

ValueId broadcast_parameter(GradBuilder& g, size_t i, const Dims& shape) {
  const ValueId v = exact(g, g.in(i));
  return g.reshape(v, tensor::element_count(g.dims(v)) == 1 ? Dims{} : shape);
}

/// Rounds v to even and adds the zero point (operand `zero`); the cast to its type clamps, and NaN gives the
/// zero point.
ValueId quantized(GradBuilder& g, ValueId v, size_t zero) {
  const ValueId z = broadcast_parameter(g, zero, {});
  const ValueId whole = g.op("where", {g.op("is_nan", {v}), z, g.add(g.op("round", {v}), z)});
  return g.op("cast_like", {whole, g.in(zero)});
}

/// The convolution of x [n, c, ...] and w [o, c / groups, ...] in f64: im2col, then a matrix product.
ValueId convolved(GradBuilder& g, ValueId x, ValueId w) {
  const Dims in = g.dims(x), taps = g.dims(w);
  const Window window = make_window(g.attrs(), {taps.begin() + 2, taps.end()}, {in.begin() + 2, in.end()});
  std::vector<int64_t> image, block, strides, dilations, pads;
  Dims five{in[0], in[1]};
  for (const WindowAxis& a : window.axes) {
    image.push_back(a.in);
    block.push_back(a.kernel);
    strides.push_back(a.stride);
    dilations.push_back(a.dilation);
    pads.push_back(a.pad_begin);
    five.push_back(a.in);
  }
  for (const WindowAxis& a : window.axes) pads.push_back(a.pad_end);
  const ir::Attrs attrs{{"strides", strides}, {"dilations", dilations}, {"pads", pads}};
  const ValueId columns = g.op("im2col", {g.reshape(x, five), g.ints(image), g.ints(block)}, attrs);
  const int64_t groups = g.attrs().get_int("group", 1), points = g.dims(columns)[2];
  const int64_t depth = g.dims(columns)[1] / groups;
  const ValueId rows = g.reshape(columns, {in[0], groups, depth, points});
  const ValueId matrix = g.reshape(w, {groups, taps[0] / groups, depth});
  return g.reshape(g.op("matmul", {matrix, rows}), {in[0], taps[0], points});
}

/// A shape that broadcasts one number per output channel of w.
Dims of_channels(GradBuilder& g, ValueId w) {
  Dims shape(g.dims(w).size(), 1);
  shape[0] = g.dims(w)[0];
  return shape;
}

Dims result_of(GradBuilder& g, ValueId w) {
  return infer_conv_shape(g.attrs(), g.type(g.in(0)).shape, g.type(w).shape).to_dims();
}

}  // namespace

std::vector<ValueId> expand_qlinear_matmul(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  GradBuilder g(graph, node, {});
  const Dims a = g.dims(g.in(0)), b = g.dims(g.in(3));
  // Parameters of a belong to its rows, those of b to its columns.
  const Dims rows{a.size() > 1 ? a[a.size() - 2] : 1, 1}, columns{b.back()};
  ValueId v = g.op("matmul", {centred(g, g.in(0), 2, rows), centred(g, g.in(3), 5, columns)});
  v = g.mul(g.mul(v, broadcast_parameter(g, 1, rows)), broadcast_parameter(g, 4, columns));
  return {quantized(g, g.div(v, broadcast_parameter(g, 6, {})), 7)};
}

std::vector<ValueId> expand_conv_integer(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const ValueId x = centred(g, g.in(0), 2), w = centred(g, g.in(1), 3, of_channels(g, g.in(1)));
  const ValueId y = g.op("cast", {convolved(g, x, w)}, {{"to", int64_t{6}}});
  return {g.reshape(y, result_of(g, g.in(1)))};
}

std::vector<ValueId> expand_qlinear_conv(ir::Graph& graph, const ir::Node& given) {
  const ir::Node node = given;
  GradBuilder g(graph, node, {});
  const ValueId w = centred(g, g.in(3), 5, of_channels(g, g.in(3)));
  const Dims channels{g.dims(w)[0], 1};
  ValueId sum = convolved(g, centred(g, g.in(0), 2), w);
  if (g.has(8)) sum = g.add(sum, broadcast_parameter(g, 8, channels));
  const ValueId scale = g.mul(broadcast_parameter(g, 1, {}), broadcast_parameter(g, 4, channels));
  const ValueId v = g.mul(sum, g.div(scale, broadcast_parameter(g, 6, {})));
  return {g.reshape(quantized(g, v, 7), result_of(g, g.in(3)))};
}

}  // namespace trireme::ops
