// Depthwise convolution over channels-last activations, f32 and 8 bit, epilogue fused.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"
#include "backend/cpu/quant/qgemm_s8.h"

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

/// 8-bit weights in ONNX order [c, 1, kh, kw]; `zero` and `bias` are [c] or null. At most 256 taps.
struct QuantDepthwiseWeights {
  ConvShape shape;
  const void* data = nullptr;
  bool is_signed = true;
  const int32_t* zero = nullptr;
  const int32_t* bias = nullptr;
};

/// Receives f32 weights [kh, kw, c] (exact integers) and [c] sums: bias - input.zero * sum of weights.
struct QuantDepthwisePacked {
  float* weights = nullptr;
  int32_t* sums = nullptr;
};

void pack_quant_depthwise(const QuantDepthwiseWeights& weights, QuantInput input, QuantDepthwisePacked out);

/// The form of the weights that byte dot products read: 3 x 3 kernels with equal strides of 1 or 2 at the
/// levels that have them, where every weight less its zero point fits a signed byte.
size_t packed_depthwise_dot_bytes(const ConvShape& shape);

/// Packs into `memory` with the epilogue's scales [c]; returns false where the form does not fit.
bool pack_depthwise_dot(const QuantDepthwiseWeights& weights, QuantInput input, const float* scale,
                        void* memory, Isa isa = best_isa());

/// Output u8 or s8; epilogue.offsets are the packed sums, row_factors unused. Sums are exact below 2^24; no
/// workspace.
struct QuantDepthwiseArgs {
  ConvShape shape;
  const void* x = nullptr;
  QuantInput input;
  const float* weights = nullptr;
  void* y = nullptr;
  QuantEpilogue epilogue;
  Isa isa = best_isa();
  const void* dots =
      nullptr;  // memory that pack_depthwise_dot filled, where it did; used with scales below one
};

void quant_depthwise_nhwc(const QuantDepthwiseArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
