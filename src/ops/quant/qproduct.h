// Quantized products with constant parameters: scales and zero points as kernels use them.
#pragma once

#include "ops/dense/activation.h"

namespace trireme::ops {

/// Operand numbers shared by qlinear and qconv_nhwc (those of ONNX QLinearConv).
struct QOperand {
  static constexpr size_t x = 0, x_scale = 1, x_zero = 2, w = 3, w_scale = 4, w_zero = 5, y_scale = 6,
                          y_zero = 7, bias = 8;
};

/// y = saturate(round(act(acc * product_scale[o] ) / y_scale) + y_zero), or f32 act(acc * product_scale[o])
/// without y_scale.
struct QProduct {
  int64_t channels = 0;
  double y_scale = 1;
  int32_t x_zero = 0, y_zero = 0;
  std::vector<double> product_scale;  // [channels]: x_scale * w_scale
  std::vector<int32_t> w_zero;        // [channels]
  std::vector<int32_t> bias;          // [channels], zeros if absent
  tensor::DType out = tensor::DType::f32;
  ActivationSpec activation;
  bool to_float() const { return out == tensor::DType::f32; }
  /// Bounds of a clamping activation in quantized steps, inside the type's range.
  int32_t lowest() const;
  int32_t highest() const;
  /// Whether those bounds are the activation's: a step is a positive number, or there is nothing to bound.
  bool has_bounds() const;
};

/// Whether the weights, or a scale, zero point or bias of each channel, have no content (tensor/absent.h): a
/// kernel is then planned and not prepared.
bool lacks_content(const ir::NodeView& node);

/// Reads the constant operands, which have content. Throws invalid_argument where their sizes do not fit
/// `channels`.
QProduct read_product(const ir::NodeView& node, int64_t channels);

/// y = round(a * fa + b * fb + shift), clamped: a sum of two quantized tensors.
struct QSum {
  float fa = 1, fb = 1, shift = 0;
  float lowest = 0, highest = 0;
};

/// Why a qadd has no such form, or nothing: other types, unknown parameters, scales that overflow.
ir::Refusal refuse_sum(const ir::NodeView& node);
QSum read_sum(const ir::NodeView& node);

/// Why the parameters cannot be read at compile time, or nothing.
ir::Refusal refuse_unknown_parameters(const ir::NodeView& node);

/// Result type from y_zero: its type, or f32 where y_scale is absent.
tensor::DType product_dtype(const ir::NodeView& node);

}  // namespace trireme::ops
