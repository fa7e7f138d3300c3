// Graphs with quantize/dequantize pairs become integer graphs.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// quantize(act(conv(dequantize(x), dequantize(w), bias))) -> qconv_nhwc between transposes; the same for
/// gemm and matmul (qlinear) and for sums (qadd). Scales and zero points must be constant. Where the result
/// is not quantized again, the product hands out f32.
size_t use_integer_kernels(ir::Graph& graph);

}  // namespace trireme::passes
