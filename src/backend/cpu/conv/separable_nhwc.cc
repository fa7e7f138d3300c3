// Cuts a chain of pointwise, depthwise and pointwise convolutions by lines or by channels, and walks the
// pieces.
#include "backend/cpu/conv/separable_nhwc.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "backend/cpu/tiles/dense_kernels.h"
#include "backend/cpu/dense/gemm_driver.h"
#include "backend/cpu/device/lane_loop.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

// What a band holds of the middle, before and behind the depthwise convolution: much of a 1 MiB second-level
// cache.
constexpr int64_t kMiddleBytes = 640 * 1024;
constexpr int64_t kFloat = sizeof(float);

RowSource rows_of(const float* a, int64_t depth) {
  RowSource source;
  source.base = reinterpret_cast<const char*>(a);
  source.row_stride = depth * kFloat;
  source.run = depth;
  return source;
}

/// How a chain is cut: into bands of `band` lines of each image, or, with `slices`, along the channels of the
/// middle.
struct ChainCut {
  int64_t bands = 1, band = 1;
  int64_t lines = 0;  ///< of the middle before the depthwise convolution, at most, in a band
  int64_t slices = 0, slice = 0;
};

/// Lines of the depthwise input that `count` output lines read.
int64_t lines_for(const ConvShape& s, int64_t count) {
  return std::min<int64_t>(s.h, (count - 1) * s.stride_h + s.kh);
}

ChainCut cut_of(const SeparableShape& shape, int threads, const DenseKernels& kernels) {
  const ConvShape& s = shape.depthwise;
  const int64_t oh = std::max<int64_t>(1, s.out_h());
  ChainCut cut;
  // Lines that a member computes though its neighbour does too.
  const int64_t shared = shape.expands ? std::max(0, s.kh - s.stride_h) : 0;
  const int64_t panels = divide_up(s.c, kernels.panel);
  const int64_t own = lines_for(s, divide_up(s.n * oh, threads));
  // Bands pay while at most a quarter of their expansion is done twice.
  if (threads > 1 && shape.expands && 4 * shared > own && s.n < threads && panels >= threads) {
    cut.slice = std::max<int64_t>(1, panels / (8 * threads)) * kernels.panel;
    cut.slices = divide_up(s.c, cut.slice);
    return cut;
  }
  const int64_t in_line = shape.expands ? s.w * s.c * kFloat : 0, out_line = s.out_w() * s.c * kFloat;
  const int64_t fixed = in_line * std::max(0, s.kh - s.stride_h), each = in_line * s.stride_h + out_line;
  int64_t most = std::clamp<int64_t>((kMiddleBytes - fixed) / std::max<int64_t>(1, each), 1, oh);
  // A team wants several bands a member, so that one that is late can be helped, but none of few register
  // tiles.
  if (threads > 1) {
    const int64_t fill = divide_up(4 * kernels.tile_rows, std::max<int64_t>(1, s.out_w()));
    most = std::clamp<int64_t>(s.n * oh / (4 * threads), std::min(fill, most), most);
  }
  cut.bands = divide_up(oh, most);
  cut.band = divide_up(oh, cut.bands);
  cut.lines = lines_for(s, cut.band);
  return cut;
}

/// The memory of one member: what it computed last, the middle before and behind the depthwise convolution,
/// and the products' own.
struct ChainLane {
  size_t before = 0, behind = 0, product = 0;
  size_t bytes() const { return sizeof(Kept) + before + behind + product; }

  /// Lines [first, end) of an image that lie in the middle.
  struct alignas(64) Kept {
    int64_t image = -1, first = 0, end = 0;
  };
};

size_t product_bytes(int64_t m, int64_t n, int64_t depth, const DenseKernels& kernels) {
  // Products of fewer rows or columns need no more.
  return plan_gemm(m, n, rows_of(nullptr, depth), kernels, {.threads = 1}).lane_bytes;
}

ChainLane lane_of(const SeparableShape& shape, const ChainCut& cut, const DenseKernels& kernels) {
  const ConvShape& s = shape.depthwise;
  ChainLane lane;
  if (cut.slices > 0) {
    lane.product = product_bytes(s.n * s.h * s.w, cut.slice, shape.in, kernels);
    return lane;
  }
  lane.behind = align64(cut.band * s.out_w() * s.c * kFloat);
  lane.product = product_bytes(cut.band * s.out_w(), shape.out, s.c, kernels);
  if (!shape.expands) return lane;
  lane.before = align64(cut.lines * s.w * s.c * kFloat);
  lane.product = std::max(lane.product, product_bytes(cut.lines * s.w, s.c, shape.in, kernels));
  return lane;
}

class Separable {
 public:
  Separable(const SeparableArgs& args, const ChainCut& cut, const ChainLane& lane)
      : a_(args),
        s_(args.shape.depthwise),
        cut_(cut),
        lane_(lane),
        kernels_(dense_kernels(args.project.isa)),
        oh_(s_.out_h()),
        ow_(s_.out_w()) {
    clamps_ = clamp_bounds(args.depthwise_end, lo_, hi_);
  }

  /// A band of the lines of one image, from x to y.
  void lines(int64_t task, char* lane) const {
    const int64_t image = task / cut_.bands, b = task % cut_.bands;
    const int64_t first = oh_ * b / cut_.bands, last = oh_ * (b + 1) / cut_.bands;
    ChainLane::Kept& kept = *reinterpret_cast<ChainLane::Kept*>(lane);
    float* before = reinterpret_cast<float*>(lane + sizeof(ChainLane::Kept));
    float* behind = reinterpret_cast<float*>(lane + sizeof(ChainLane::Kept) + lane_.before);
    char* memory = lane + sizeof(ChainLane::Kept) + lane_.before + lane_.behind;
    const int64_t line = s_.w * s_.c;
    const int64_t top = first * s_.stride_h - s_.pad_top;
    const int64_t from = std::max<int64_t>(0, top);
    const int64_t to = std::min(s_.h, (last - 1) * s_.stride_h - s_.pad_top + s_.kh);
    const float* source = a_.x + (image * s_.h + from) * line;
    if (a_.shape.expands) {
      // The band above left lines that this one reads again.
      const bool follows = kept.image == image && kept.first <= from && kept.end > from && kept.end <= to;
      const int64_t again = follows ? kept.end - from : 0;
      if (again > 0 && from > kept.first)
        std::memmove(before, before + (from - kept.first) * line,
                     static_cast<size_t>(again * line) * sizeof(float));
      expand((image * s_.h + from + again) * s_.w, (to - from - again) * s_.w, before + again * line, memory);
      kept = {image, from, to};
      source = before;
    }
    depthwise({source, to - from, from - top, last - first, 0, s_.c}, behind);
    project((image * oh_ + first) * ow_, (last - first) * ow_, behind, memory);
  }

  /// A slice of the channels of the middle of all images.
  void channels(int64_t slice, float* before, float* behind, char* memory) const {
    const int64_t column = slice * cut_.slice, count = std::min(cut_.slice, s_.c - column);
    GemmJob job;
    job.source = rows_of(a_.x, a_.shape.in);
    job.m = s_.n * s_.h * s_.w;
    job.b = {a_.expand.data + column * a_.shape.in, a_.shape.in, count, a_.expand.isa};
    job.next = column + count < s_.c ? job.b.data + count * a_.shape.in : a_.project.data;
    job.c = before + column;
    job.ldc = s_.c;
    job.epilogue = a_.expand_end;
    if (job.epilogue.bias) job.epilogue.bias += column;
    run_gemm_alone(job, plan_gemm(job.m, count, job.source, kernels_, {.threads = 1}), memory);
    for (int64_t image = 0; image < s_.n; ++image) {
      depthwise({before + image * s_.h * s_.w * s_.c, s_.h, s_.pad_top, oh_, column, count},
                behind + image * oh_ * ow_ * s_.c);
    }
  }

 private:
  /// `h` lines of an image whose first stands `pad_top` below the first tap; `count` lines come out.
  struct Band {
    const float* x;
    int64_t h, pad_top, count;
    int64_t channel, channels;
  };

  /// Pixels [pixel, pixel + count) of x to the middle.
  void expand(int64_t pixel, int64_t count, float* out, char* memory) const {
    if (count <= 0) return;
    GemmJob job;
    job.source = rows_of(a_.x + pixel * a_.shape.in, a_.shape.in);
    job.m = count;
    job.b = a_.expand;
    job.next = a_.project.data;
    job.c = out;
    job.ldc = s_.c;
    job.epilogue = a_.expand_end;
    run_gemm_alone(job, plan_gemm(count, s_.c, job.source, kernels_, {.threads = 1}), memory);
  }

  void depthwise(const Band& from, float* out) const {
    DepthwiseBand band = {};
    band.type = DepthwiseType::f32;
    band.x = from.x + from.channel;
    band.y = out + from.channel;
    band.h = from.h, band.w = s_.w, band.c = s_.c, band.ow = ow_;
    band.channels = from.channels;
    band.begin = 0, band.end = from.count;
    band.kh = s_.kh, band.kw = s_.kw;
    band.stride_h = s_.stride_h, band.stride_w = s_.stride_w;
    band.dilation_h = band.dilation_w = 1;
    band.pad_top = static_cast<int>(from.pad_top), band.pad_left = s_.pad_left;
    band.weights = a_.depthwise + from.channel;
    band.bias = a_.depthwise_end.bias ? a_.depthwise_end.bias + from.channel : nullptr;
    band.lo = lo_, band.hi = hi_;
    kernels_.depthwise_band(band);
    if (clamps_) return;
    kernels_.activate({out + from.channel, s_.c, from.count * ow_, from.channels, nullptr}, a_.depthwise_end);
  }

  /// The middle of pixels [pixel, pixel + count) to y.
  void project(int64_t pixel, int64_t count, const float* from, char* memory) const {
    GemmJob job;
    job.source = rows_of(from, s_.c);
    job.m = count;
    job.b = a_.project;
    job.c = a_.y + pixel * a_.shape.out;
    job.ldc = a_.shape.out;
    job.epilogue = a_.end;
    if (job.epilogue.residual) job.epilogue.residual += pixel * a_.shape.out;
    run_gemm_alone(job, plan_gemm(count, a_.shape.out, job.source, kernels_, {.threads = 1}), memory);
  }

  const SeparableArgs& a_;
  const ConvShape& s_;
  const ChainCut& cut_;
  const ChainLane& lane_;
  const DenseKernels& kernels_;
  int64_t oh_, ow_;
  bool clamps_;
  float lo_ = 0, hi_ = 0;
};

GemmPlan plan_projection(const SeparableShape& shape, int threads, const DenseKernels& kernels) {
  const ConvShape& s = shape.depthwise;
  return plan_gemm(s.n * s.out_h() * s.out_w(), shape.out, rows_of(nullptr, s.c), kernels,
                   {.threads = threads});
}

/// The middle of whole images, for cuts by channels.
struct Whole {
  size_t before, behind;
};

Whole whole_of(const ConvShape& s) {
  const auto bytes = [&](int64_t pixels) { return align64(static_cast<size_t>(pixels * s.c * kFloat)); };
  return {bytes(s.n * s.h * s.w), bytes(s.n * s.out_h() * s.out_w())};
}

void run_by_channels(const SeparableArgs& a, const ChainCut& cut, char* memory, base::ThreadPool& pool) {
  const ConvShape& s = a.shape.depthwise;
  const DenseKernels& kernels = dense_kernels(a.project.isa);
  const Whole whole = whole_of(s);
  const ChainLane lane = lane_of(a.shape, cut, kernels);
  const Separable chain(a, cut, lane);
  float* before = reinterpret_cast<float*>(memory);
  float* behind = reinterpret_cast<float*>(memory + whole.before);
  char* lanes = memory + whole.before + whole.behind;
  run_lanes(pool, cut.slices, [&](int64_t slice, int member) {
    chain.channels(slice, before, behind, lanes + static_cast<size_t>(member) * lane.bytes());
  });
  GemmJob job;
  job.source = rows_of(behind, s.c);
  job.m = s.n * s.out_h() * s.out_w();
  job.b = a.project;
  job.c = a.y;
  job.ldc = a.shape.out;
  job.epilogue = a.end;
  run_gemm(job, plan_projection(a.shape, pool.size(), kernels), lanes, pool);
}

}  // namespace

size_t separable_workspace_bytes(const SeparableShape& shape, int threads) {
  const ConvShape& s = shape.depthwise;
  size_t most = 0;
  for (const Isa isa : usable_isas()) {
    const DenseKernels& kernels = dense_kernels(isa);
    const ChainCut cut = cut_of(shape, threads, kernels);
    const ChainLane lane = lane_of(shape, cut, kernels);
    size_t bytes = static_cast<size_t>(std::max(1, threads)) * lane.bytes();
    if (cut.slices > 0) {
      const GemmPlan plan = plan_projection(shape, threads, kernels);
      const Whole whole = whole_of(s);
      bytes =
          whole.before + whole.behind + std::max(bytes, static_cast<size_t>(plan.lanes) * plan.lane_bytes);
    }
    most = std::max(most, bytes);
  }
  return most + 64;
}

void separable_nhwc(const SeparableArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape.depthwise;
  base::check(s.groups == s.c && s.oc == s.c && s.dilation_h == 1 && s.dilation_w == 1 && s.kh >= s.stride_h,
              "not a depthwise convolution for the chain");
  if (s.n == 0 || s.out_h() <= 0 || s.out_w() <= 0 || args.shape.out == 0) return;
  const DenseKernels& kernels = dense_kernels(args.project.isa);
  const ChainCut cut = cut_of(args.shape, pool.size(), kernels);
  char* memory = align64(workspace);
  if (cut.slices > 0) return run_by_channels(args, cut, memory, pool);
  const ChainLane lane = lane_of(args.shape, cut, kernels);
  const Separable chain(args, cut, lane);
  for (int m = 0; m < pool.size(); ++m) new (memory + static_cast<size_t>(m) * lane.bytes()) ChainLane::Kept;
  run_lanes(pool, s.n * cut.bands, [&](int64_t task, int member) {
    chain.lines(task, memory + static_cast<size_t>(member) * lane.bytes());
  });
}

}  // namespace trireme::cpu
