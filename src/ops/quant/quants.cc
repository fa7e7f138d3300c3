// Quantization: quantize_linear, dequantize_linear, dynamic_quantize_linear, qlinear_matmul: types and cost.
#include "ops/quant/quant_cuts.h"
#include "ops/dense/matmul_shape.h"
#include "ops/elementwise/cast.h"
#include "ops/quant/quant_kernels.h"
#include "ops/quant/quants_expand.h"
#include "ops/quant/scale_map.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

std::vector<ir::AttrSpec> scale_attrs() {
  return {{"axis", "int", "axis that scales run along, default 1"},
          {"block_size", "int",
           "elements along the axis that share a scale; 0: one scale per index or per tensor"},
          {"output_dtype", "int", "ONNX number of the result type; 0: that of the zero point or scale"}};
}

DType asked_type(const ir::NodeView& n, DType fallback) {
  const int64_t code = n.attrs.get_int("output_dtype", 0);
  return code == 0 ? fallback : dtype_from_onnx(code);
}

bool is_quantized(DType t) {
  return (tensor::is_integer(t) && tensor::bits_of(t) <= 16) ||
         (tensor::is_float(t) && tensor::bits_of(t) <= 8);
}

ir::OpSchema quantize_linear() {
  std::vector<ir::AttrSpec> attrs = scale_attrs();
  attrs.push_back({"saturate", "int", "8-bit floats: out of range becomes the largest value, default 1"});
  attrs.push_back({"precision", "int", "ONNX number of the type of x / scale; 0: that of the scale"});
  return {.name = "quantize_linear",
          .doc = "y = saturate(round_half_even(x / scale) + zero); operands x, scale, zero",
          .cut = quantize_cut,
          .min_in = 2,
          .max_in = 3,
          .attrs = std::move(attrs),
          .infer =
              [](const ir::NodeView& n) {
                const DType to = asked_type(n, n.present(2) ? n.in[2].dtype : DType::u8);
                base::require(is_quantized(to), "quantize_linear to ", name_of(to));
                if (n.present(2)) {
                  base::require(n.in[2].dtype == to, "zero point is ", name_of(n.in[2].dtype),
                                ", the result ", name_of(to));
                }
                check_scale_shape(n);
                return std::vector<TensorType>{{to, n.in[0].shape}};
              },
          .why_no_grad =
              "rounding: piecewise constant; training with quantization uses a straight-through estimate",
          .onnx = "QuantizeLinear"};
}

ir::OpSchema dequantize_linear() {
  return {.name = "dequantize_linear",
          .doc = "y = (x - zero) scale; operands x, scale, zero",
          .cut = quantize_cut,
          .min_in = 2,
          .max_in = 3,
          .attrs = scale_attrs(),
          .infer =
              [](const ir::NodeView& n) {
                const DType to = asked_type(n, n.in[1].dtype);
                base::require(to == DType::f32 || to == DType::f16 || to == DType::bf16 || to == DType::f64,
                              "dequantize_linear to ", name_of(to));
                check_scale_shape(n);
                return std::vector<TensorType>{{to, n.in[0].shape}};
              },
          .why_no_grad = "its operand is a quantized integer or 8-bit value",
          .onnx = "DequantizeLinear"};
}

ir::OpSchema dynamic_quantize_linear() {
  return {.name = "dynamic_quantize_linear",
          .doc = "u8 quantization over [min(x, 0), max(x, 0)]; results y, scale, zero",
          .why_no_cut = "its scale follows from the extremes of the whole tensor",
          .min_out = 3,
          .max_out = 3,
          .infer =
              [](const ir::NodeView& n) {
                return std::vector<TensorType>{
                    {DType::u8, n.in[0].shape}, {DType::f32, Shape{}}, {DType::u8, Shape{}}};
              },
          .why_no_grad = "rounding: piecewise constant",
          .onnx = "DynamicQuantizeLinear"};
}

ir::OpSchema qlinear_matmul() {
  return {
      .name = "qlinear_matmul",
      .doc =
          "operands a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero: the product of the real values, "
          "quantized again",
      .cut = qlinear_matmul_cut,
      .min_in = 8,
      .max_in = 8,
      .infer =
          [](const ir::NodeView& n) {
            const Shape &a = n.in[0].shape, &b = n.in[3].shape;
            const Shape y = infer_matmul(a, b);
            for (size_t i : {1, 2}) check_per_line(n, i, lines_of(a, 2));
            for (size_t i : {4, 5}) check_per_line(n, i, lines_of(b, 1));
            return std::vector<TensorType>{{n.in[7].dtype, y}};
          },
      .expand = expand_qlinear_matmul,
      .cost = [](const ir::NodeView& n) { return matmul_cost(n, 0, 3); },
      .why_no_grad = "integer product: its operands are quantized values",
      .onnx = "QLinearMatMul"};
}

}  // namespace

std::vector<ir::OpDef> quants_ops() {
  return {{quantize_linear(), quantize_linear_cpu_kernels()},
          {dequantize_linear(), dequantize_linear_cpu_kernels()},
          {dynamic_quantize_linear(), dynamic_quantize_linear_cpu_kernels()},
          {qlinear_matmul(), qlinear_matmul_cpu_kernels()}};
}

}  // namespace trireme::ops
