// qlinear, qconv_nhwc, qadd: 8-bit products and sums with fused requantization. Passes make these ops from
// QDQ graphs.
#include "ops/quant/quant_cuts.h"
#include "ops/conv/window.h"
#include "ops/quant/qproduct.h"
#include "ops/quant/qproduct_kernels.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;
using Q = QOperand;

ir::ValueId operand(const ir::Node& node, size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; }

ir::ValueId dequantized(ir::Graph& g, const ir::Node& node, size_t value, int64_t axis) {
  std::vector<ir::ValueId> in{node.in[value], node.in[value + 1]};
  if (operand(node, value + 2) != ir::kNoValue) in.push_back(node.in[value + 2]);
  return g.add1(table().need("dequantize_linear"), in, {{"axis", axis}});
}

/// bias * x_scale * w_scale, or kNoValue without a bias.
ir::ValueId dequantized_bias(ir::Graph& g, const ir::Node& node) {
  if (operand(node, Q::bias) == ir::kNoValue) return ir::kNoValue;
  const ir::ValueId scale = g.add1(table().need("mul"), {node.in[Q::x_scale], node.in[Q::w_scale]});
  return g.add1(table().need("dequantize_linear"), {node.in[Q::bias], scale}, {{"axis", int64_t{0}}});
}

ir::ValueId requantized(ir::Graph& g, const ir::Node& node, ir::ValueId y) {
  y = expand_finish(g, y, ir::kNoValue, activation_of(node.attrs));
  if (operand(node, Q::y_scale) == ir::kNoValue) return y;
  return g.add1(table().need("quantize_linear"), {y, node.in[Q::y_scale], node.in[Q::y_zero]});
}

ir::Cost product_cost(const ir::NodeView& n, double sums) {
  ir::Cost c;
  for (size_t i = 0; i < n.in.size(); ++i)
    c.bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  c.bytes += static_cast<double>(tensor::bytes_of(n.out[0]));
  c.flop = 2 * sums * static_cast<double>(n.out[0].shape.elements().value_or(0));
  return c;
}

std::vector<TensorType> infer_qlinear(const ir::NodeView& n) {
  const Shape &x = n.in[Q::x].shape, &w = n.in[Q::w].shape;
  base::require(w.has_rank() && w.rank() == 2, "qlinear weights ", w.to_string(), " are not a matrix");
  if (!x.has_rank()) return {{product_dtype(n), x}};
  const size_t t = n.attrs.get_int("transposed", 0) != 0;
  base::require(x.rank() >= 1, "qlinear of a scalar");
  const Dim &k = x[x.rank() - 1], &wk = w[t];
  base::require(!k.is_static() || !wk.is_static() || k == wk, "inner extents differ: ", x.to_string(),
                " and ", w.to_string());
  std::vector<Dim> out = x.dims();
  out.back() = w[1 - t];
  return {{product_dtype(n), Shape(std::move(out))}};
}

std::vector<ir::ValueId> expand_qlinear(ir::Graph& g, const ir::Node& node) {
  const bool transposed = node.attrs.get_int("transposed", 0) != 0;
  const ir::ValueId x = dequantized(g, node, Q::x, 0);
  ir::ValueId w = dequantized(g, node, Q::w, transposed ? 0 : 1);
  if (transposed) w = g.add1(table().need("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  ir::ValueId y = g.add1(table().need("matmul"), {x, w});
  const ir::ValueId bias = dequantized_bias(g, node);
  if (bias != ir::kNoValue) y = g.add1(table().need("add"), {y, bias});
  return {requantized(g, node, y)};
}

std::vector<TensorType> infer_qconv(const ir::NodeView& n) {
  const Shape& x = n.in[Q::x].shape;
  if (!x.has_rank()) return {{product_dtype(n), Shape::unknown(4)}};
  base::require(x.rank() == 4, "qconv_nhwc of ", x.to_string());
  const Shape y = infer_conv_shape(n.attrs, Shape{x[0], x[3], x[1], x[2]}, n.in[Q::w].shape);
  return {{product_dtype(n), Shape{y[0], y[2], y[3], y[1]}}};
}

std::vector<ir::ValueId> expand_qconv(ir::Graph& g, const ir::Node& node) {
  const ir::OpDef& transpose = table().need("transpose");
  const ir::ValueId x = dequantized(g, node, Q::x, 0), w = dequantized(g, node, Q::w, 0);
  std::vector<ir::ValueId> in{g.add1(transpose, {x}, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}}), w};
  const ir::ValueId bias = dequantized_bias(g, node);
  if (bias != ir::kNoValue) in.push_back(bias);
  ir::Attrs attrs = node.attrs;
  for (const ir::AttrSpec& a : activation_attrs()) attrs.erase(a.name);
  const ir::ValueId y = g.add1(table().need("conv"), in, attrs);
  return {requantized(g, node, g.add1(transpose, {y}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}}))};
}

const char* const kOperands =
    "operands x, x_scale, x_zero, w, w_scale [1 or channels], w_zero, y_scale, y_zero, bias i32; without "
    "y_scale the "
    "result is f32";

ir::OpSchema qlinear() {
  std::vector<ir::AttrSpec> attrs = activation_attrs();
  attrs.push_back({"transposed", "int", "w is [n, k]"});
  return {
      .name = "qlinear",
      .doc = std::string("y = quantize(act(dequantize(x) dequantize(w) + bias)) in integers; ") + kOperands,
      .cut = qlinear_cut,
      .min_in = 5,
      .max_in = 9,
      .attrs = std::move(attrs),
      .infer = infer_qlinear,
      .expand = expand_qlinear,
      .cost = [](const ir::NodeView& n) { return product_cost(n, double(n.in_dims(Q::x).back())); },
      .why_no_grad = "integer product: its operands are quantized values"};
}

ir::OpSchema qconv_nhwc() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  for (const ir::AttrSpec& a : activation_attrs()) attrs.push_back(a);
  attrs.push_back({"group", "int", "channels fall into this many independent groups"});
  return {
      .name = "qconv_nhwc",
      .doc = std::string("y = quantize(act(conv(dequantize(x), dequantize(w)) + bias)) in integers, x and y "
                         "[n, h, w, c], w [oc, c/group, kh, kw]; ") +
             kOperands,
      .cut = qconv_nhwc_cut,
      .min_in = 5,
      .max_in = 9,
      .attrs = std::move(attrs),
      .infer = infer_qconv,
      .expand = expand_qconv,
      .cost =
          [](const ir::NodeView& n) {
            const tensor::Dims w = n.in_dims(Q::w);
            return product_cost(n, double(w[1] * w[2] * w[3]));
          },
      .why_no_grad = "integer convolution: its operands are quantized values"};
}

ir::OpSchema qadd() {
  return {.name = "qadd",
          .doc =
              "y = quantize(act(dequantize(a) + dequantize(b))); operands a, a_scale, a_zero, b, b_scale, "
              "b_zero, "
              "y_scale, y_zero, all scales per tensor; a and b have one shape",
          .cut = qadd_cut,
          .min_in = 8,
          .max_in = 8,
          .attrs = activation_attrs(),
          .infer =
              [](const ir::NodeView& n) {
                const bool both = n.in[0].shape.is_static() && n.in[3].shape.is_static();
                base::require(!both || n.in[0].shape == n.in[3].shape, "qadd of ", n.in[0].shape.to_string(),
                              " and ", n.in[3].shape.to_string());
                return std::vector<TensorType>{{product_dtype(n), n.in[0].shape}};
              },
          .expand =
              [](ir::Graph& g, const ir::Node& node) {
                const ir::ValueId a = dequantized(g, node, 0, 0), b = dequantized(g, node, 3, 0);
                return std::vector{requantized(g, node, g.add1(table().need("add"), {a, b}))};
              },
          .why_no_grad = "its operands are quantized values"};
}

}  // namespace

std::vector<ir::OpDef> qproducts_ops() {
  return {{qlinear(), qlinear_cpu_kernels()},
          {qconv_nhwc(), qconv_nhwc_cpu_kernels()},
          {qadd(), qadd_cpu_kernels()}};
}

}  // namespace trireme::ops
