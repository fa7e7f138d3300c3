// f32 depthwise convolutions of large kernels over channels-last activations, epilogue fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// Weights of whole vectors of `lanes` channels in the order that the kernel of the shape reads them.
struct PackedDepthwiseLines {
  const float* data = nullptr;
  int lanes = 0;
};

/// True for a group for each channel and kernels of at most 64 rows that do not reach far beyond the image.
bool depthwise_lines_fits(const ConvShape& shape);

/// Bytes of the weights with the channels filled up to whole vectors.
size_t packed_depthwise_lines_bytes(const ConvShape& shape);

/// Packs ONNX weights [c, 1, kh, kw] as [vector, kh, kw, lane] into `memory` for the level that runs.
PackedDepthwiseLines pack_depthwise_lines(const ConvShape& shape, const float* weights, void* memory);

struct DepthwiseLinesArgs {
  ConvShape shape;
  const float* x = nullptr;
  PackedDepthwiseLines weights;
  float* y = nullptr;
  Epilogue epilogue;
};

/// For each member of the team as many padded lines of one to four vectors of channels as a kernel spans.
size_t depthwise_lines_workspace_bytes(const ConvShape& shape, int threads);

/// Each line of a few vectors of channels is copied once, with its padding, into a ring of as many lines as
/// the kernel spans, where pixels lie next to each other: taps are read from the first-level cache whatever
/// the number of channels. Few channels are computed across pixels (depthwise_thin.h). Kernel rows outside
/// the image are skipped, columns outside it are multiplied as zeros; each output is one multiply-add chain
/// in (kh, kw) order whatever the tiling or the team.
void depthwise_lines_nhwc(const DepthwiseLinesArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
