// Walks the output rows of a depthwise convolution and hands each to the row kernel of the chosen level.
#include "backend/cpu/depthwise_nhwc.h"

#include <algorithm>

#include "backend/cpu/dense_kernels.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// The input rows of a band should stay in half of a 1 MiB second-level cache while the channels walk over
// them.
constexpr int64_t kBandBytes = 384 * 1024;

void run_band(const DepthwiseArgs& a, const DenseKernels& kernels, int64_t image, int64_t begin,
              int64_t end) {
  const ConvShape& s = a.shape;
  const int64_t out = image * s.out_h() * s.out_w() * s.c;
  float lo, hi;
  const bool clamps = clamp_bounds(a.epilogue, lo, hi);
  const bool after = a.epilogue.act_before_residual;
  const float* residual = a.epilogue.residual ? a.epilogue.residual + out : nullptr;
  DepthwiseBand band = {};
  band.x = a.x + image * s.h * s.w * s.c;
  band.h = s.h, band.w = s.w, band.c = s.c, band.ow = s.out_w();
  band.begin = begin, band.end = end;
  band.kh = s.kh, band.kw = s.kw;
  band.stride_h = s.stride_h, band.stride_w = s.stride_w;
  band.dilation_h = s.dilation_h, band.dilation_w = s.dilation_w;
  band.pad_top = s.pad_top, band.pad_left = s.pad_left;
  band.weights = a.weights, band.bias = a.epilogue.bias;
  band.residual = clamps || !after ? residual : nullptr;
  band.y = a.y + out;
  band.lo = lo, band.hi = hi;
  band.act_before_residual = after;
  kernels.depthwise_band(band);
  if (clamps) return;
  const int64_t row = s.out_w() * s.c;
  kernels.activate(
      {band.y + begin * row, row, end - begin, row, after && residual ? residual + begin * row : nullptr},
      a.epilogue);
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
  const DenseKernels& kernels = dense_kernels(args.isa);
  const int64_t oh = s.out_h();
  if (oh <= 0 || s.n == 0) return;
  int64_t rows = std::clamp<int64_t>(kBandBytes / (s.w * s.c * 4 * s.stride_h), 1, oh);
  // A piece should outweigh the microsecond that handing it out costs, and the team wants several pieces a
  // member.
  const int64_t row_flop = 2 * s.out_w() * s.c * s.kh * s.kw;
  const int64_t least = std::min(oh, 1 + 60000 / (row_flop + 1));
  if (pool.size() > 1) rows = std::max(least, std::min(rows, s.n * oh / (4 * pool.size())));
  const int64_t bands = (oh + rows - 1) / rows;
  pool.run(s.n * bands, [&](int64_t i) {
    const int64_t band = i % bands;
    run_band(args, kernels, i / bands, oh * band / bands, oh * (band + 1) / bands);
  });
}

}  // namespace trireme::cpu
