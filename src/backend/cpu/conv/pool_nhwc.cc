// Walks the output rows of a pooling and hands each to the row kernel of the chosen level.
#include "backend/cpu/conv/pool_nhwc.h"

#include <algorithm>

#include "backend/cpu/tiles/dense_kernels.h"

namespace trireme::cpu {
namespace {

/// The taps of one axis that lie inside: [low, high).
struct TapSpan {
  int64_t low, high;
  int64_t count() const { return high - low; }
};

/// Those of `taps` positions from `first` on that lie in [0, limit).
TapSpan span_inside(int64_t first, int64_t taps, int64_t dilation, int64_t limit) {
  const auto before = [&](int64_t position) {
    return position <= first ? 0 : std::min(taps, (position - first + dilation - 1) / dilation);
  };
  return {before(0), std::max(before(0), before(limit))};
}

struct RowTask {
  const PoolArgs& args;
  const DenseKernels& kernels;
  float* scale;  // [out_w] scratch of this row, or null for the maximum
};

void run_row(const RowTask& task, int64_t image, int64_t oh) {
  const PoolArgs& a = task.args;
  const ConvShape& s = a.shape;
  const int64_t first_h = oh * s.stride_h - s.pad_top;
  const TapSpan rows = span_inside(first_h, s.kh, s.dilation_h, s.h);
  if (task.scale) {
    const int64_t padded_h = s.h + s.pad_top + s.pad_bottom, padded_w = s.w + s.pad_left + s.pad_right;
    const TapSpan padded_rows = span_inside(first_h + s.pad_top, s.kh, s.dilation_h, padded_h);
    const int64_t high = a.count_padding ? padded_rows.count() : rows.count();
    for (int64_t o = 0; o < a.out_w; ++o) {
      const int64_t first_w = o * s.stride_w - s.pad_left;
      const int64_t wide = a.count_padding
                               ? span_inside(first_w + s.pad_left, s.kw, s.dilation_w, padded_w).count()
                               : span_inside(first_w, s.kw, s.dilation_w, s.w).count();
      task.scale[o] = high * wide > 0 ? 1.0f / static_cast<float>(high * wide) : 0.0f;
    }
  }
  const int64_t line = s.w * s.c, top = rows.count() > 0 ? first_h + rows.low * s.dilation_h : 0;
  task.kernels.pool_row({a.x + (image * s.h + top) * line, s.dilation_h * line, rows.count(), s.kw, s.w, s.c,
                         a.out_w, s.stride_w, s.dilation_w, s.pad_left, task.scale,
                         a.y + (image * a.out_h + oh) * a.out_w * s.c});
}

void run_rows(const PoolArgs& args, float* scales, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const DenseKernels& kernels = dense_kernels(args.isa);
  const int64_t row_work = args.out_w * s.c * std::min<int64_t>(s.kh, s.h) * std::min<int64_t>(s.kw, s.w);
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
