// Depthwise f32 convolution over channels-last activations, vectorised over channels, clamps and residual
// fused.
#pragma once

#include "backend/cpu/conv_nhwc.h"

namespace trireme::cpu {

/// shape.groups == shape.c == shape.oc. `weights` are [kh, kw, c] (see pack_depthwise); any level reads them.
struct DepthwiseArgs {
  ConvShape shape;
  const float* x = nullptr;
  const float* weights = nullptr;
  float* y = nullptr;
  Epilogue epilogue;
  Isa isa = best_isa();
};

/// Reorders ONNX weights [c, 1, kh, kw] to [kh, kw, c]; `out` holds c * kh * kw floats.
void pack_depthwise(const ConvShape& shape, const float* weights, float* out);

/// No workspace. Each output is one multiply-add chain in (kh, kw) order.
void depthwise_nhwc(const DepthwiseArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
