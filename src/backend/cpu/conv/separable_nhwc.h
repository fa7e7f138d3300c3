// Pointwise, depthwise, pointwise: three f32 convolutions in one walk, so that what stands between them stays
// cached.
#pragma once

#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/dense/gemm_f32.h"

namespace trireme::cpu {

/// The extents of such a chain: x[n, h, w, in] -> [n, h, w, c] -> depthwise -> [n, oh, ow, c] -> y[n, oh, ow,
/// oc].
struct SeparableShape {
  ConvShape depthwise;  ///< groups == c == oc of the middle; dilation 1, kernel at least the stride
  int64_t in = 1;       ///< channels of x; those of the middle where nothing expands
  int64_t out = 1;      ///< channels of y
  bool expands = true;  ///< false: the depthwise convolution reads x itself
};

struct SeparableArgs {
  SeparableShape shape;
  const float* x = nullptr;
  PackedMatrix expand;               ///< [in, c]; only with shape.expands
  const float* depthwise = nullptr;  ///< as pack_depthwise makes them
  PackedMatrix project;              ///< [c, out]
  float* y = nullptr;
  Epilogue expand_end, depthwise_end;  ///< without residual
  Epilogue end;
};

size_t separable_workspace_bytes(const SeparableShape& shape, int threads);

/// Runs the chain. Tall images go by bands of lines, whose middle stays in the second-level cache of one
/// core; where bands of few lines would compute their neighbours' again, a member takes channels of the
/// middle of whole images. Each value is the same multiply-add chain as in gemm and depthwise_nhwc, whatever
/// the cut or the team.
void separable_nhwc(const SeparableArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
