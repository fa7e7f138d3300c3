// f32 depthwise convolutions of few channels over channels-last activations: a vector holds neighbouring
// pixels, epilogue fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// True for a group for each channel, few channels that leave lanes of their last vector empty, and kernels
/// of at most 64 rows that do not reach far beyond the image. Depends on the level that runs.
bool depthwise_thin_fits(const ConvShape& shape);

/// Bytes of the weights, once for each lane of as many vectors as hold whole pixels.
size_t packed_depthwise_thin_bytes(const ConvShape& shape);

/// Packs ONNX weights [c, 1, kh, kw] as [vector, kh, kw, lane] into `memory` for the level that runs; lane l
/// of vector v is channel (v * lanes + l) mod c. Returns the first weight.
const float* pack_depthwise_thin(const ConvShape& shape, const float* weights, void* memory);

struct DepthwiseThinArgs {
  ConvShape shape;
  const float* x = nullptr;
  const float* weights = nullptr;  // see pack_depthwise_thin
  float* y = nullptr;
  Epilogue epilogue;
};

/// The bias of each lane, and for each member of the team as many padded lines as a kernel spans.
size_t depthwise_thin_workspace_bytes(const ConvShape& shape, int threads);

/// A line of outputs is one run of floats, and so is what a tap reads of a line of the image: vectors take
/// such a run as it lies, across pixels, and repeat their weights after the least common multiple of the
/// channels and the lanes. Lines are copied with their padding into a ring; with a stride, the pixels that a
/// tap skips lie in runs of their own. Each output is one multiply-add chain in (kh, kw) order whatever the
/// tiling or the team; columns outside the image are multiplied as zeros, rows outside it are left out.
void depthwise_thin_nhwc(const DepthwiseThinArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
