// Graphs with quantize/dequantize pairs become integer graphs.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// quantize(clamp(conv(dequantize(x), dequantize(w), bias))) -> qconv_nhwc between transposes; the same for
/// gemm and matmul with weights (qlinear), for products of two computed operands (qmatmul) and for sums
/// (qadd); ONNX's own quantized products become the same. Scales and zero points must be constant, those of
/// activations of one value, or of one for each channel of a depthwise convolution. Where the result is not
/// quantized again, the product hands out f32.
size_t use_integer_kernels(ir::Graph& graph);

}  // namespace trireme::passes
