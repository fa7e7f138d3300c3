// conv, conv_transpose, deform_conv in ONNX layout [n, c, spatial...]: types and cost.
#include "ops/conv/conv_cuts.h"
#include "ops/conv/conv_grad.h"
#include "ops/conv/deform_expand.h"
#include "ops/conv/transpose_window.h"
#include "ops/conv/window.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {

using tensor::Dim;
using tensor::Dims;
using tensor::Shape;

ir::OpSchema conv_schema() {
  return {.name = "conv",
          .doc = "y[n, o, p] = b[o] + sum over c, k of x[n, c, p stride + k dilation - pad] w[o, c, k]",
          .precision = kProduct,
          .is_product = true,
          .cut = conv_cut,
          .localise = localise_conv,
          .min_in = 2,
          .max_in = 3,
          .attrs = conv_attrs(),
          .infer =
              [](const ir::NodeView& n) {
                return std::vector<tensor::TensorType>{
                    {n.in[0].dtype, infer_conv_shape(n.attrs, n.in[0].shape, n.in[1].shape)}};
              },
          .cost = [](const ir::NodeView& n) { return conv_cost(n, 1); },
          .grad = rule(conv_gradients),
          .onnx = "Conv"};
}

ir::OpSchema conv_transpose_schema() {
  std::vector<ir::AttrSpec> attrs = conv_attrs();
  attrs.push_back({"output_padding", "ints", "extra extent after each spatial axis of the result"});
  attrs.push_back({"output_shape", "ints", "wanted spatial extents; padding follows from them"});
  return {.name = "conv_transpose",
          .doc = "the gradient of conv towards x: every input point adds its weighted window to the result",
          .precision = kProduct,
          .is_product = true,
          .cut = conv_transpose_cut,
          .localise = localise_conv,
          .min_in = 2,
          .max_in = 3,
          .attrs = std::move(attrs),
          .infer =
              [](const ir::NodeView& n) {
                const Shape y = infer_conv_transpose_shape(n.attrs, n.in[0].shape, n.in[1].shape);
                if (n.present(2) && n.in[2].shape.is_static() && y.has_rank() && y[1].is_static()) {
                  base::require(n.in[2].shape == Shape{y[1]}, "transposed convolution to ", y.to_string(),
                                " with a bias of shape ", n.in[2].shape.to_string());
                }
                return std::vector<tensor::TensorType>{{n.in[0].dtype, y}};
              },
          .cost =
              [](const ir::NodeView& n) {
                // Every input point is multiplied by each weight of its channel once.
                ir::Cost cost = conv_cost(n, 1);
                const Dims w = n.in_dims(1);
                double taps = 1;
                for (size_t i = 1; i < w.size(); ++i) taps *= static_cast<double>(w[i]);
                cost.flop = 2 * taps * static_cast<double>(n.in[0].shape.elements().value_or(0));
                return cost;
              },
          .grad = rule(conv_transpose_gradients),
          .onnx = "ConvTranspose"};
}

namespace {

/// Offsets [n, offset_group * 2 * taps, oh, ow] and mask [n, offset_group * taps, oh, ow].
std::vector<tensor::TensorType> infer_deform_conv(const ir::NodeView& n) {
  const Shape y = infer_conv_shape(n.attrs, n.in[0].shape, n.in[1].shape);
  const Shape &x = n.in[0].shape, &w = n.in[1].shape;
  const int64_t groups = n.attrs.get_int("offset_group", 1);
  base::require(groups >= 1 && (!x.has_rank() || !x[1].is_static() || x[1].value() % groups == 0),
                "deform_conv of ", x.to_string(), " in ", groups, " offset groups");
  if (!y.is_static() || !w.is_static()) return {{n.in[0].dtype, y}};
  const int64_t taps = tensor::element_count({groups, w[2].value(), w[3].value()});
  for (const auto& [i, each] : {std::pair<size_t, int64_t>{2, 2}, {4, 1}}) {
    if (!n.present(i) || !n.in[i].shape.is_static()) continue;
    const Shape want{y[0], Dim(each * taps), y[2], y[3]};
    base::require(n.in[i].shape == want, "deform_conv ", i == 2 ? "offsets" : "mask", " of shape ",
                  n.in[i].shape.to_string(), ", needs ", want.to_string());
  }
  return {{n.in[0].dtype, y}};
}

}  // namespace

ir::OpSchema deform_conv_schema() {
  std::vector<ir::AttrSpec> attrs = conv_attrs();
  attrs.push_back({"offset_group", "int", "channels share offsets in this many groups"});
  return {.name = "deform_conv",
          .doc = "2-D convolution whose taps are moved by `offset` (bilinear samples) and scaled by `mask`",
          .cut = deform_conv_cut,
          .min_in = 3,
          .max_in = 5,
          .attrs = std::move(attrs),
          .infer = infer_deform_conv,
          .expand = expand_deform_conv,
          .cost = [](const ir::NodeView& n) { return conv_cost(n, 1); },
          .grad = grad_by_expand(),
          .onnx = "DeformConv"};
}

}  // namespace trireme::ops
