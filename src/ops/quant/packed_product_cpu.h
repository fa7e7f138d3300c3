// What the packed 8-bit kernels of qlinear and qconv_nhwc share: packed weights with offsets and
// requantization.
#pragma once

#include "backend/cpu/quant/qgemm_s8.h"
#include "ir/kernel.h"
#include "ops/quant/qproduct.h"

namespace trireme::ops {

/// Everything a packed product needs besides its operands' addresses. Vectors run over all output channels.
struct PackedProduct {
  std::shared_ptr<const void> memory;  // keeps the packed bytes alive
  std::vector<cpu::PackedQuantMatrix> groups;
  std::vector<int32_t> offsets, row_factors;
  std::vector<float> scale;
  cpu::QuantInput input;
  cpu::QuantEpilogue epilogue;
};

/// Fills offsets, scale, input and epilogue of `p` for its packed groups.
void finish_packed(const ir::NodeView& node, const QProduct& q, PackedProduct& p);

/// Why no packed kernel runs the node, or nothing.
ir::Refusal refuse_packed_product(const ir::NodeView& node);

/// Depthwise convolution, then packed convolution of any window and group.
std::vector<ir::Kernel> qconv_fast_kernels();

}  // namespace trireme::ops
