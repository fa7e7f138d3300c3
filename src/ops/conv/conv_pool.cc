// A convolution with the maximum of 2 x 2 windows behind it, and its gradients: the image between the two is
// never in memory. A training step on a CPU is given them (passes/pooled_convs.h).
#include "ops/conv/conv_pool.h"

#include "ops/cut_notation.h"
#include "ops/dense/activation.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::Shape;
using tensor::TensorType;

constexpr const char* kWindow =
    "; windows are 2 x 2 of stride 2, the place of a maximum is 0 to 3 or 4 for none";

/// Images may be split; all else is whole.
ir::CutRule images_cut(const ir::NodeView& n, const std::vector<size_t>& in, size_t outs, std::string sums) {
  CutNotation notation(n);
  for (size_t i : in) notation.in(i, "n...");
  for (size_t i = 0; i < outs; ++i) notation.out(i, "n...");
  return {.notation = notation.text(), .sums = std::move(sums)};
}

/// Bytes of all operands and results; flop of the convolution.
ir::Cost cost_of(const ir::NodeView& n, const PooledConv& c) {
  ir::Cost cost{.flop = 2 * static_cast<double>(c.x[0] * c.out_h() * c.out_w()) *
                        static_cast<double>(tensor::element_count(c.w))};
  for (const TensorType& t : n.in) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  for (const TensorType& t : n.out) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  return cost;
}

std::vector<TensorType> infer(const ir::NodeView& n) {
  base::require(n.in[0].shape.rank() == 4 && n.in[1].shape.rank() == 4, "conv_pool_nhwc of ",
                n.in[0].shape.to_string(), " and ", n.in[1].shape.to_string());
  const PooledConv c = pooled_conv(n);
  base::require(c.w[1] == c.x[3], "conv_pool_nhwc: ", c.x[3], " channels, weights of ", c.w[1]);
  const Shape p({Dim(c.x[0]), Dim(c.out_h() / 2), Dim(c.out_w() / 2), Dim(c.w[0])});
  return {{n.in[0].dtype, p}, {tensor::DType::u8, p}};
}

std::vector<TensorType> infer_x(const ir::NodeView& n) {
  const std::vector<int64_t> in = n.attrs.get_ints("in_shape");
  const Shape &dp = n.in[0].shape, &w = n.in[2].shape;
  base::require(in.size() == 2 && dp.rank() == 4 && w.rank() == 4, "conv_pool_nhwc_grad_x of ",
                dp.to_string(), " and ", w.to_string());
  return {{n.in[0].dtype, Shape({dp[0], Dim(in[0]), Dim(in[1]), w[1]})}};
}

std::vector<TensorType> infer_w(const ir::NodeView& n) {
  const std::vector<int64_t> kernel = n.attrs.get_ints("kernel_shape");
  const Shape &x = n.in[0].shape, &dp = n.in[1].shape;
  base::require(kernel.size() == 2 && x.rank() == 4 && dp.rank() == 4, "conv_pool_nhwc_grad_w of ",
                x.to_string(), " and ", dp.to_string());
  return {{n.in[0].dtype, Shape({dp[3], x[3], Dim(kernel[0]), Dim(kernel[1])})},
          {n.in[0].dtype, Shape({dp[3]})}};
}

ir::OpSchema conv_pool_nhwc_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  for (const ir::AttrSpec& a : activation_attrs()) attrs.push_back(a);
  return {
      .name = "conv_pool_nhwc",
      .doc = std::string("maximum over windows of activation(conv(x, w) + bias), and its place; x [n,h,w,c], "
                         "w [oc,c,kh,kw] -> p, which [n,oh/2,ow/2,oc]") +
             kWindow,
      .cut = [](const ir::NodeView& n) { return images_cut(n, {0}, 2, ""); },
      .min_in = 2,
      .max_in = 3,
      .max_out = 2,
      .attrs = std::move(attrs),
      .infer = infer,
      .cost = [](const ir::NodeView& n) { return cost_of(n, pooled_conv(n)); },
      .why_no_grad = "made after gradients are taken"};
}

ir::OpSchema conv_pool_nhwc_grad_x_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"in_shape", "ints", "height and width of x"});
  return {.name = "conv_pool_nhwc_grad_x",
          .doc = std::string(
                     "gradient of conv_pool_nhwc towards x, zero where gate is not above zero; dp, which, "
                     "w, gate [like x] -> dx [n,h,w,c]") +
                 kWindow,
          .cut =
              [](const ir::NodeView& n) {
                return images_cut(n, {0, 1, 3}, 1, "");
              },
          .min_in = 3,
          .max_in = 4,
          .attrs = std::move(attrs),
          .infer = infer_x,
          .cost = [](const ir::NodeView& n) { return cost_of(n, pooled_conv_of_grad_x(n)); },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

ir::OpSchema conv_pool_nhwc_grad_w_schema() {
  return {.name = "conv_pool_nhwc_grad_w",
          .doc = std::string(
                     "gradients of conv_pool_nhwc towards w and bias; x, dp, which -> dw [oc,c,kh,kw], db "
                     "[oc]") +
                 kWindow,
          .cut =
              [](const ir::NodeView& n) {
                return images_cut(n, {0, 1, 2}, 0, "n");
              },
          .min_in = 3,
          .max_in = 3,
          .max_out = 2,
          .attrs = window_attrs(),
          .infer = infer_w,
          .cost = [](const ir::NodeView& n) { return cost_of(n, pooled_conv_of_grad_w(n)); },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

/// `x` [n,h,w,c], `w` [oc,c,kh,kw].
PooledConv geometry(const ir::Attrs& attrs, Dims x, Dims w) {
  const Window window = make_window(attrs, {w[2], w[3]}, {x[1], x[2]});
  return {std::move(x), std::move(w), window};
}

}  // namespace

PooledConv pooled_conv(const ir::NodeView& n) { return geometry(n.attrs, n.in_dims(0), n.in_dims(1)); }
PooledConv pooled_conv_of_grad_x(const ir::NodeView& n) {
  return geometry(n.attrs, n.out_dims(0), n.in_dims(2));
}
PooledConv pooled_conv_of_grad_w(const ir::NodeView& n) {
  return geometry(n.attrs, n.in_dims(0), n.out_dims(0));
}

std::vector<ir::OpDef> pooled_convs_ops() {
  return {{conv_pool_nhwc_schema(), conv_pool_nhwc_cpu_kernels()},
          {conv_pool_nhwc_grad_x_schema(), conv_pool_nhwc_grad_x_cpu_kernels()},
          {conv_pool_nhwc_grad_w_schema(), conv_pool_nhwc_grad_w_cpu_kernels()}};
}

}  // namespace trireme::ops
