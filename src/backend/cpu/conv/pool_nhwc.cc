// Walks the output rows of a pooling and hands each to the row kernel of the chosen level.
#include "backend/cpu/conv/pool_nhwc.h"

#include <algorithm>

#include "backend/cpu/tiles/dense_kernels.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

constexpr int kMaxTapRows = 512;

/// How many of `taps` positions from `first` lie in [0, limit).
int64_t valid_taps(int64_t first, int taps, int dilation, int64_t limit) {
  int64_t count = 0;
  for (int t = 0; t < taps; ++t) {
    const int64_t at = first + int64_t{t} * dilation;
    count += at >= 0 && at < limit;
  }
  return count;
}

struct RowTask {
  const PoolArgs& args;
  const DenseKernels& kernels;
  float* scale;  // [out_w] scratch of this row, or null for the maximum
};

void run_row(const RowTask& task, int64_t image, int64_t oh) {
  const PoolArgs& a = task.args;
  const ConvShape& s = a.shape;
  const float* rows[kMaxTapRows];
  int valid = 0;
  const int64_t first_h = oh * s.stride_h - s.pad_top;
  for (int t = 0; t < s.kh; ++t) {
    const int64_t ih = first_h + int64_t{t} * s.dilation_h;
    if (ih >= 0 && ih < s.h) rows[valid++] = a.x + (image * s.h + ih) * s.w * s.c;
  }
  if (task.scale) {
    const int64_t high =
        a.count_padding ? valid_taps(first_h + s.pad_top, s.kh, s.dilation_h, s.h + s.pad_top + s.pad_bottom)
                        : valid;
    for (int64_t o = 0; o < a.out_w; ++o) {
      const int64_t first_w = o * s.stride_w - s.pad_left;
      const int64_t wide = a.count_padding ? valid_taps(first_w + s.pad_left, s.kw, s.dilation_w,
                                                        s.w + s.pad_left + s.pad_right)
                                           : valid_taps(first_w, s.kw, s.dilation_w, s.w);
      task.scale[o] = high * wide > 0 ? 1.0f / static_cast<float>(high * wide) : 0.0f;
    }
  }
  task.kernels.pool_row({rows, valid, s.kw, s.w, s.c, a.out_w, s.stride_w, s.dilation_w, s.pad_left,
                         task.scale, a.y + (image * a.out_h + oh) * a.out_w * s.c});
}

void run_rows(const PoolArgs& args, float* scales, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::require(s.kh <= kMaxTapRows, "pooling windows are at most ", kMaxTapRows, " rows high, not ", s.kh);
  const DenseKernels& kernels = dense_kernels(args.isa);
  const int64_t row_work = args.out_w * s.c * s.kh * s.kw;
  pool.for_range(s.n * args.out_h, 1 + 30000 / (row_work + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowTask task = {args, kernels, scales ? scales + i * args.out_w : nullptr};
      run_row(task, i / args.out_h, i % args.out_h);
    }
  });
}

}  // namespace

void max_pool_nhwc(const PoolArgs& args, base::ThreadPool& pool) { run_rows(args, nullptr, pool); }

size_t average_pool_workspace_bytes(const PoolArgs& args) {
  return static_cast<size_t>(args.shape.n * args.out_h * args.out_w) * sizeof(float);
}

void average_pool_nhwc(const PoolArgs& args, void* workspace, base::ThreadPool& pool) {
  run_rows(args, static_cast<float*>(workspace), pool);
}

void global_average_pool_nhwc(const GlobalPoolArgs& g, base::ThreadPool& pool) {
  const DenseKernels& kernels = dense_kernels(g.isa);
  const float scale = 1.0f / static_cast<float>(g.lines * g.line);
  pool.for_range(g.n, 1 + 30000 / (g.lines * g.line * g.c + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels.global_average({g.x + i * g.lines * g.line * g.c, g.lines, g.line, g.c, scale, g.y + i * g.c});
    }
  });
}

}  // namespace trireme::cpu
