// Cut rules of quantization and of quantized products.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// quantize_linear, dequantize_linear: everything, with the scales of its axis.
ir::CutRule quantize_cut(const ir::NodeView& node);
/// Rows and output channels; sums of integers stay whole, since results are quantized again.
ir::CutRule qlinear_cut(const ir::NodeView& node);
ir::CutRule qlinear_matmul_cut(const ir::NodeView& node);
ir::CutRule qconv_nhwc_cut(const ir::NodeView& node);
ir::CutRule qadd_cut(const ir::NodeView& node);

}  // namespace trireme::ops
