// Walks the output lines of a first-layer convolution; tiles that touch the padding read small padded copies.
#include "backend/cpu/conv/conv_planes.h"
#include "backend/cpu/device/lane_loop.h"

#include <algorithm>
#include <cstring>

namespace trireme::cpu {
namespace {

constexpr int kMaxChannels = 4;
constexpr int kMaxTaps = 7;

/// Floats of one plane line that a tile of the largest height reads, rounded up.
constexpr int kSpan = (kMaxTileRows - 1) * 2 + kMaxTaps + 1;

constexpr float kZeros[kSpan] = {};

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

}  // namespace

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
