// 8-bit convolutions over channels-last activations: implicit products on packed weights, requantisation
// fused.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/quant/qgemm_s8.h"

namespace trireme::cpu {

/// 8-bit weights as the model has them.
struct QuantConvWeights {
  const void* data = nullptr;  // ONNX order [oc, c / groups, kh, kw]
  bool is_signed = true;
};

size_t packed_quant_conv_bytes(const ConvShape& shape, Isa isa = best_isa());

/// Packs group `group` of the weights into its part of `memory` (packed_quant_conv_bytes in all). Use
/// quant_offsets on each group with its slice of bias and zero points. Allocates scratch; meant for load
/// time.
PackedQuantMatrix pack_quant_conv(const ConvShape& shape, QuantConvWeights weights, int64_t group,
                                  void* memory, Isa isa = best_isa());

struct QuantConvArgs {
  ConvShape shape;
  const void* x = nullptr;
  ImageLayout x_layout = ImageLayout::nhwc;  // nchw only where quant_conv_reads_planes says so
  QuantInput input;
  const PackedQuantMatrix* groups = nullptr;  // [shape.groups]
  void* y = nullptr;                          // nhwc
  QuantEpilogue epilogue;                     // vectors over all oc
};

/// True for convolutions of few channels (first layers), which take either layout of the input.
bool quant_conv_reads_planes(const ConvShape& shape);

size_t quant_conv2d_workspace_bytes(const ConvShape& shape, int threads, Isa isa = best_isa());

/// Pixels outside the image count as the input's zero point, that is as real zeros.
void quant_conv2d_nhwc(const QuantConvArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
