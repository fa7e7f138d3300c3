// f32 convolutions to a handful of output channels over channels-last activations, epilogue fused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

inline constexpr int64_t kMostNarrowOutputs = 8;

/// True for one group of at least 16 input channels and at most kMostNarrowOutputs outputs.
bool narrow_fits(const ConvShape& shape);

/// Bytes of the weights, and of a pixel of zeros behind them.
size_t packed_narrow_bytes(const ConvShape& shape);

/// Reorders ONNX weights [oc, c, kh, kw] to [oc, kh, kw, c] in `memory`; any level reads them.
const float* pack_narrow(const ConvShape& shape, const float* weights, void* memory);

struct NarrowArgs {
  ConvShape shape;
  const float* x = nullptr;
  const float* weights = nullptr;  // of pack_narrow
  float* y = nullptr;
  Epilogue epilogue;
};

/// Lanes run along the input channels, where the register tiles of products would leave most lanes of a few
/// outputs empty. An output is the sum of as many multiply-add chains as a vector has lanes, lane l over
/// channels l, l + lanes, ... of every tap in (kh, kw, c) order; columns outside the image are multiplied as
/// zeros, rows outside it are skipped. No workspace.
void narrow_nhwc(const NarrowArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
