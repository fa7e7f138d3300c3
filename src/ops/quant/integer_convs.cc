// conv_integer and qlinear_conv in ONNX layout [n, c, spatial...]: types and cost.
#include "ops/conv/conv_cuts.h"
#include "ops/conv/window.h"
#include "ops/quant/quants_expand.h"
#include "ops/table.h"

namespace trireme::ops {

using tensor::DType;

ir::OpSchema conv_integer_schema() {
  return {.name = "conv_integer",
          .doc = "convolution of x - x_zero with w - w_zero in i32; padding counts as x_zero",
          .cut = conv_integer_cut,
          .min_in = 2,
          .max_in = 4,
          .attrs = conv_attrs(),
          .infer =
              [](const ir::NodeView& n) {
                return std::vector<tensor::TensorType>{
                    {DType::i32, infer_conv_shape(n.attrs, n.in[0].shape, n.in[1].shape)}};
              },
          .expand = expand_conv_integer,
          .cost = [](const ir::NodeView& n) { return conv_cost(n, 1); },
          .why_no_grad = "integer convolution: its operands are quantized values",
          .onnx = "ConvInteger"};
}

ir::OpSchema qlinear_conv_schema() {
  return {.name = "qlinear_conv",
          .doc =
              "operands x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias: "
              "y = saturate(round(conv_i32 x_scale w_scale / y_scale) + y_zero)",
          .cut = qlinear_conv_cut,
          .min_in = 8,
          .max_in = 9,
          .attrs = conv_attrs(),
          .infer =
              [](const ir::NodeView& n) {
                return std::vector<tensor::TensorType>{
                    {n.in[7].dtype, infer_conv_shape(n.attrs, n.in[0].shape, n.in[3].shape)}};
              },
          .expand = expand_qlinear_conv,
          .cost = [](const ir::NodeView& n) { return conv_cost(n, 3); },
          .why_no_grad = "integer convolution: its operands are quantized values",
          .onnx = "QLinearConv"};
}

}  // namespace trireme::ops
