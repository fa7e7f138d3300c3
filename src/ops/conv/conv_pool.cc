// A convolution followed by the maximum of 2 x 2 windows, and its gradients, without the image in between in
// memory. The compiler uses it in training steps on a CPU (passes/fuse/pooled_convs.h).
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

/// Images may be cut; all other dimensions stay whole.
ir::CutRule pooled_cut(const ir::NodeView& n, const std::vector<size_t>& in, size_t outs, std::string sums) {
  CutNotation notation(n);
  for (size_t i : in) notation.in(i, "n...");
  for (size_t i = 0; i < outs; ++i) notation.out(i, "n...");
  return {.notation = notation.text(), .sums = std::move(sums)};
}

/// The bytes of all operands and results; the flop of the convolution.
ir::Cost cost_of(const ir::NodeView& n, const PooledConv& c) {
  ir::Cost cost{.flop = 2 * static_cast<double>(c.x[0] * c.out_h() * c.out_w()) *
                        static_cast<double>(tensor::element_count(c.w))};
  for (const TensorType& t : n.in) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  for (const TensorType& t : n.out) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  return cost;
}

std::vector<TensorType> infer_conv_pool(const ir::NodeView& n) {
  base::require(n.in[0].shape.rank() == 4 && n.in[1].shape.rank() == 4, "conv_pool_nhwc of ",
                n.in[0].shape.to_string(), " and ", n.in[1].shape.to_string());
  const PooledConv c = pooled_conv(n);
  base::require(c.w[1] == c.x[3], "conv_pool_nhwc: ", c.x[3], " channels, weights of ", c.w[1]);
  const Shape p({Dim(c.x[0]), Dim(c.out_h() / 2), Dim(c.out_w() / 2), Dim(c.w[0])});
  return {{n.in[0].dtype, p}, {tensor::DType::u8, p}};
}

/// The operands are x, dp, which, w.
std::vector<TensorType> infer_grad(const ir::NodeView& n) {
  const Shape &dp = n.in[1].shape, &w = n.in[3].shape;
  base::require(n.in[0].shape.rank() == 4 && dp.rank() == 4 && w.rank() == 4, "conv_pool_nhwc_grad of ",
                n.in[0].shape.to_string(), ", ", dp.to_string(), " and ", w.to_string());
  return {n.in[0], n.in[3], {n.in[0].dtype, Shape({w[0]})}};
}

ir::OpSchema conv_pool_nhwc_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  for (const ir::AttrSpec& a : activation_attrs()) attrs.push_back(a);
  return {
      .name = "conv_pool_nhwc",
      .doc = std::string("maximum over windows of activation(conv(x, w) + bias), and its place; x [n,h,w,c], "
                         "w [oc,c,kh,kw] -> p, which [n,oh/2,ow/2,oc]") +
             kWindow,
      .cut = [](const ir::NodeView& n) { return pooled_cut(n, {0}, 2, ""); },
      .min_in = 2,
      .max_in = 3,
      .max_out = 2,
      .attrs = std::move(attrs),
      .infer = infer_conv_pool,
      .cost = [](const ir::NodeView& n) { return cost_of(n, pooled_conv(n)); },
      .why_no_grad = "made after gradients are taken"};
}

ir::OpSchema conv_pool_nhwc_grad_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"rectified", "int", "1: x is the result of a relu, whose gradient is taken too"});
  return {
      .name = "conv_pool_nhwc_grad",
      .doc = std::string("gradients of conv_pool_nhwc; x, dp, which, w -> dx [n,h,w,c], dw [oc,c,kh,kw], db "
                         "[oc]") +
             kWindow,
      .cut =
          [](const ir::NodeView& n) {
            return pooled_cut(n, {0, 1, 2}, 1, "n");
          },
      .min_in = 4,
      .max_in = 4,
      .min_out = 3,
      .max_out = 3,
      .attrs = std::move(attrs),
      .infer = infer_grad,
      .cost =
          [](const ir::NodeView& n) {
            ir::Cost cost = cost_of(n, pooled_conv_of_grad(n));
            cost.flop *= 2;
            return cost;
          },
      .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

/// The geometry for `x` [n,h,w,c] and `w` [oc,c,kh,kw].
PooledConv geometry(const ir::Attrs& attrs, Dims x, Dims w) {
  const Window window = make_window(attrs, {w[2], w[3]}, {x[1], x[2]});
  return {std::move(x), std::move(w), window};
}

}  // namespace

PooledConv pooled_conv(const ir::NodeView& n) { return geometry(n.attrs, n.in_dims(0), n.in_dims(1)); }
PooledConv pooled_conv_of_grad(const ir::NodeView& n) {
  return geometry(n.attrs, n.in_dims(0), n.in_dims(3));
}

std::vector<ir::OpDef> pooled_convs_ops() {
  return {{conv_pool_nhwc_schema(), conv_pool_nhwc_cpu_kernels()},
          {conv_pool_nhwc_grad_schema(), conv_pool_nhwc_grad_cpu_kernels()}};
}

}  // namespace trireme::ops
