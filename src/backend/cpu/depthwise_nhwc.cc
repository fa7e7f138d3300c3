// Walks the output rows of a depthwise convolution and hands each to the row kernel of the chosen level.
#include "backend/cpu/depthwise_nhwc.h"

#include "backend/cpu/dense_kernels.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

constexpr int kMaxTapRows = 32;

void run_row(const DepthwiseArgs& a, const DenseKernels& kernels, int64_t image, int64_t oh) {
  const ConvShape& s = a.shape;
  const float* rows[kMaxTapRows];
  for (int t = 0; t < s.kh; ++t) {
    const int64_t ih = oh * s.stride_h - s.pad_top + int64_t{t} * s.dilation_h;
    rows[t] = ih >= 0 && ih < s.h ? a.x + (image * s.h + ih) * s.w * s.c : nullptr;
  }
  const int64_t out = (image * s.out_h() + oh) * s.out_w() * s.c;
  float lo, hi;
  const bool clamps = clamp_bounds(a.epilogue, lo, hi);
  const float* residual = a.epilogue.residual ? a.epilogue.residual + out : nullptr;
  const bool after = a.epilogue.act_before_residual;
  DepthwiseRow row = {rows,
                      s.kh,
                      s.kw,
                      s.w,
                      s.c,
                      s.out_w(),
                      s.stride_w,
                      s.dilation_w,
                      s.pad_left,
                      a.weights,
                      a.epilogue.bias,
                      clamps || !after ? residual : nullptr,
                      a.y + out,
                      lo,
                      hi,
                      after};
  kernels.depthwise_row(row);
  if (!clamps) kernels.activate({row.y, s.c, row.ow, s.c, after ? residual : nullptr}, a.epilogue);
}

}  // namespace

void pack_depthwise(const ConvShape& shape, const float* weights, float* out) {
  const int64_t taps = shape.kh * shape.kw;
  for (int64_t c = 0; c < shape.c; ++c) {
    for (int64_t t = 0; t < taps; ++t) out[t * shape.c + c] = weights[c * taps + t];
  }
}

void depthwise_nhwc(const DepthwiseArgs& args, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(s.groups == s.c && s.oc == s.c, "depthwise convolution needs one group per channel");
  base::require(s.kh <= kMaxTapRows, "depthwise kernels are at most 32 rows high, not ", s.kh);
  const DenseKernels& kernels = dense_kernels(args.isa);
  const int64_t oh = s.out_h();
  const int64_t row_flop = 2 * s.out_w() * s.c * s.kh * s.kw;
  // A piece should outweigh the microsecond that waking the team costs.
  const int64_t grain = 1 + 60000 / (row_flop + 1);
  pool.for_range(s.n * oh, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_row(args, kernels, i / oh, i % oh);
  });
}

}  // namespace trireme::cpu
