// Walks the output lines of a first-layer convolution; tiles that touch the padding read small padded copies.
#include "backend/cpu/conv/conv_planes.h"
#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/device/round_up.h"

#include <algorithm>
#include <cstring>

namespace trireme::cpu {
namespace {

constexpr int kMaxChannels = 4;
constexpr int kMaxTaps = 7;

/// Floats of one plane line that a tile of the largest height reads, rounded up.
constexpr int kSpan = (kMaxTileRows - 1) * 2 + kMaxTaps + 1;

constexpr float kZeros[kSpan] = {};

constexpr int kLeastRun = 16;  // floats of a plane line: shorter ones are faster interleaved first

/// Workspace of one lane: pointers and lengths of the (c, kh) runs, and padded copies of each.
struct PlaneLane {
  const float* rows[kMaxChannels * kMaxTaps * kRowSlots];
  int32_t lengths[kMaxChannels * kMaxTaps];
  float copies[kMaxChannels * kMaxTaps * kSpan];
};

class PlaneRunner {
 public:
  PlaneRunner(const ConvArgs& args)
      : args_(args),
        kernels_(dense_kernels(args.weights.isa)),
        ow_(args.shape.out_w()),
        oh_(args.shape.out_h()) {
    tiles_ = (ow_ + kernels_.tile_rows - 1) / kernels_.tile_rows;
    clamps_ = clamp_bounds(args.epilogue, lo_, hi_);
  }

  /// Output line `line` of image `image`.
  void run_line(int64_t image, int64_t line, PlaneLane& lane) const {
    const ConvShape& s = args_.shape;
    std::fill(lane.lengths, lane.lengths + s.c * s.kh, s.kw);
    for (int64_t t = 0; t < tiles_; ++t) {
      const int64_t begin = ow_ * t / tiles_, end = ow_ * (t + 1) / tiles_;
      point(image, line, begin, end, lane);
      multiply((image * oh_ + line) * ow_ + begin, static_cast<int>(end - begin), lane);
    }
  }

 private:
  void point(int64_t image, int64_t line, int64_t begin, int64_t end, PlaneLane& lane) const {
    const ConvShape& s = args_.shape;
    const int64_t first = begin * s.stride_w - s.pad_left;
    const int64_t span = (end - begin - 1) * s.stride_w + s.kw;
    const bool inside = first >= 0 && first + span <= s.w;
    const int64_t valid_begin = std::max<int64_t>(0, -first), valid_end = std::min(span, s.w - first);
    int run = 0;
    for (int64_t c = 0; c < s.c; ++c) {
      for (int kh = 0; kh < s.kh; ++kh, ++run) {
        const int64_t ih = line * s.stride_h - s.pad_top + int64_t{kh} * s.dilation_h;
        const float*& out = lane.rows[run * kRowSlots];
        if (ih < 0 || ih >= s.h) {
          out = kZeros;
          continue;
        }
        const float* row = args_.x + ((image * s.c + c) * s.h + ih) * s.w;
        out = row + first;
        if (inside) continue;
        float* copy = lane.copies + run * kSpan;
        for (int64_t i = 0; i < span; ++i)
          copy[i] = i >= valid_begin && i < valid_end ? row[first + i] : 0.0f;
        out = copy;
      }
    }
  }

  void multiply(int64_t pixel, int rows, const PlaneLane& lane) const {
    const ConvShape& s = args_.shape;
    const Epilogue& e = args_.epilogue;
    GemmTile tile;
    tile.rows = lane.rows;
    tile.lengths = lane.lengths;
    tile.segments = static_cast<int>(s.c * s.kh);
    tile.ldc = s.oc;
    tile.finish = true;
    tile.lo = lo_, tile.hi = hi_;
    tile.clamps_low = clamps_ && e.act != Activation::none;
    tile.clamps_high = tile.clamps_low && e.act != Activation::relu;
    tile.act_before_residual = e.act_before_residual;
    for (int64_t column = 0; column < s.oc; column += kernels_.panel) {
      tile.n = static_cast<int>(std::min<int64_t>(kernels_.panel, s.oc - column));
      tile.b = args_.weights.data + column * s.c * s.kh * s.kw;
      tile.c = args_.y + pixel * s.oc + column;
      tile.bias = e.bias ? e.bias + column : nullptr;
      const float* residual = e.residual ? e.residual + pixel * s.oc + column : nullptr;
      tile.residual = !clamps_ && e.act_before_residual ? nullptr : residual;
      const int vectors = tile.n > kernels_.width ? 2 : 1;
      kernels_.gemm_line[s.stride_w - 1][vectors - 1][rows - 1](tile);
      if (!clamps_)
        kernels_.activate({tile.c, s.oc, rows, tile.n, e.act_before_residual ? residual : nullptr}, e);
    }
  }

  const ConvArgs& args_;
  const DenseKernels& kernels_;
  int64_t ow_, oh_, tiles_;
  float lo_ = 0, hi_ = 0;
  bool clamps_ = true;
};

bool pads(const ConvShape& s) { return s.pad_top || s.pad_left || s.pad_bottom || s.pad_right; }

/// The extents of planes with their padding.
int64_t padded_h(const ConvShape& s) { return s.h + s.pad_top + s.pad_bottom; }
int64_t padded_w(const ConvShape& s) { return s.w + s.pad_left + s.pad_right; }

/// Rows of planes that carry their padding: a channel is a step of a whole plane down, a kernel row a step of
/// a line across.
RowSource plane_runs(const ConvShape& s, const float* planes) {
  constexpr int64_t kFloat = sizeof(float);
  RowSource r;
  r.base = reinterpret_cast<const char*>(planes);
  r.run = s.kw;
  r.spatial = r.padded = true;
  r.taps_h = s.c, r.taps_w = s.kh;
  r.h = padded_h(s), r.w = padded_w(s);
  r.oh = s.out_h(), r.ow = s.out_w();
  r.pixel_stride = kFloat;
  r.line_stride = r.w * kFloat;
  r.image_stride = s.c * r.h * r.line_stride;
  r.stride_h = s.stride_h, r.stride_w = s.stride_w;
  r.dilation_h = static_cast<int>(r.h);
  r.dilation_w = static_cast<int>(s.dilation_h * r.w);
  return r;
}

int64_t padded_floats(const ConvShape& s) { return pads(s) ? s.n * s.c * padded_h(s) * padded_w(s) : 0; }

void pad_planes(const ConvArgs& a, float* out, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  const int64_t hp = padded_h(s), wp = padded_w(s);
  pool.for_range(s.n * s.c * hp, 1 + 16384 / wp, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t line = i % hp - s.pad_top;
      float* to = out + i * wp;
      if (line < 0 || line >= s.h) {
        std::fill_n(to, wp, 0.0f);
        continue;
      }
      std::fill_n(to, s.pad_left, 0.0f);
      std::memcpy(to + s.pad_left, a.x + (i / hp * s.h + line) * s.w,
                  static_cast<size_t>(s.w) * sizeof(float));
      std::fill_n(to + s.pad_left + s.w, s.pad_right, 0.0f);
    }
  });
}

}  // namespace

bool conv_reads_plane_runs(const ConvShape& s, ImageLayout layout) {
  return layout == ImageLayout::nchw && s.groups == 1 && s.dilation_w == 1 && s.kw >= kLeastRun &&
         s.pad_top >= 0 && s.pad_left >= 0 && s.pad_bottom >= 0 && s.pad_right >= 0 &&
         s.dilation_h * padded_w(s) <= INT32_MAX && !conv_reads_planes(s, layout);
}

size_t conv_plane_runs_workspace_bytes(const ConvShape& s, int threads) {
  const int64_t m = s.n * s.out_h() * s.out_w();
  const RowSource source = plane_runs(s, nullptr);
  size_t lanes = 0;
  for (const Isa isa : usable_isas()) {
    const GemmPlan plan = plan_gemm(m, s.oc, source, dense_kernels(isa), {.threads = threads});
    lanes = std::max(lanes, static_cast<size_t>(plan.lanes) * plan.lane_bytes);
  }
  return lanes + align64(static_cast<size_t>(padded_floats(s)) * sizeof(float)) + 2 * kAlignment;
}

void conv2d_plane_runs(const ConvArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  float* padded = reinterpret_cast<float*>(align64(workspace));
  if (pads(s)) pad_planes(args, padded, pool);
  GemmJob job;
  job.m = s.n * s.out_h() * s.out_w();
  job.ldc = s.oc;
  job.source = plane_runs(s, pads(s) ? padded : args.x);
  job.b = {args.weights.data, s.c * s.kh * s.kw, s.oc, args.weights.isa};
  job.c = args.y;
  job.epilogue = args.epilogue;
  const GemmPlan plan =
      plan_gemm(job.m, s.oc, job.source, dense_kernels(job.b.isa), {.threads = pool.size()});
  run_gemm(job, plan, align64(reinterpret_cast<char*>(padded + padded_floats(s))), pool);
}

bool conv_reads_planes(const ConvShape& s, ImageLayout layout) {
  return layout == ImageLayout::nchw && s.groups == 1 && s.c <= kMaxChannels && s.kh <= kMaxTaps &&
         s.kw <= kMaxTaps && s.stride_w <= 2 && s.dilation_w == 1;
}

size_t conv_planes_workspace_bytes(const ConvShape&, int threads) {
  return static_cast<size_t>(threads) * sizeof(PlaneLane) + alignof(PlaneLane);
}

void conv2d_planes(const ConvArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  const int64_t lines = s.n * s.out_h();
  if (lines <= 0 || s.oc == 0) return;
  const PlaneRunner runner(args);
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(workspace) + alignof(PlaneLane) - 1) /
                            alignof(PlaneLane) * alignof(PlaneLane);
  PlaneLane* lanes = reinterpret_cast<PlaneLane*>(aligned);
  constexpr int64_t kGrain = 4;
  run_lanes(pool, (lines + kGrain - 1) / kGrain, [&](int64_t task, int lane) {
    for (int64_t i = task * kGrain; i < std::min(lines, (task + 1) * kGrain); ++i)
      runner.run_line(i / s.out_h(), i % s.out_h(), lanes[lane]);
  });
}

}  // namespace trireme::cpu
