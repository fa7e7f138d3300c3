// Cuts the outputs into regions of equal taps, multiplies region by region, and finishes into the output.
#include "backend/cpu/conv/conv_inside.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/conv/conv_source.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

constexpr int kMostTaps = 11;                  // of a side
constexpr int kMostParts = 2 * kMostTaps + 1;  // an axis falls into at most one part for each end of a tap
constexpr int64_t kLeastChannels = 32;

/// Outputs [begin, end) of an axis, whose taps [first, last) lie inside the image.
struct Part {
  int64_t begin = 0, end = 0;
  int first = 0, last = 0;
  int64_t outputs() const { return end - begin; }
  int taps() const { return last - first; }
};

struct Axis {
  int64_t in, out;
  int kernel, stride, dilation, pad;
};

Axis vertical(const ConvShape& s) { return {s.h, s.out_h(), s.kh, s.stride_h, s.dilation_h, s.pad_top}; }
Axis horizontal(const ConvShape& s) { return {s.w, s.out_w(), s.kw, s.stride_w, s.dilation_w, s.pad_left}; }

struct Parts {
  std::array<Part, kMostParts> list;
  int count = 0;
  const Part* begin() const { return list.data(); }
  const Part* end() const { return list.data() + count; }
  /// Outputs times taps inside the image.
  int64_t taps() const {
    int64_t sum = 0;
    for (const Part& p : *this) sum += p.outputs() * p.taps();
    return sum;
  }
};

Parts parts_of(const Axis& a) {
  Parts parts;
  for (int64_t o = 0; o < a.out; ++o) {
    const int64_t at = o * a.stride - a.pad;
    Part p{.begin = o, .end = o + 1};
    while (p.first < a.kernel && at + int64_t{p.first} * a.dilation < 0) ++p.first;
    p.last = p.first;
    while (p.last < a.kernel && at + int64_t{p.last} * a.dilation < a.in) ++p.last;
    Part* last = parts.count > 0 ? &parts.list[static_cast<size_t>(parts.count - 1)] : nullptr;
    if (last != nullptr && last->first == p.first && last->last == p.last) {
      last->end = o + 1;
    } else {
      parts.list[static_cast<size_t>(parts.count++)] = p;
    }
  }
  return parts;
}

/// Calls visit(rows, columns, first row of its sums) for every region.
template <class Visit>
void for_regions(const ConvShape& s, const Parts& down, const Parts& across, const Visit& visit) {
  int64_t at = 0;
  for (const Part& h : down) {
    for (const Part& w : across) {
      visit(h, w, at);
      at += s.n * h.outputs() * w.outputs();
    }
  }
}

/// Kernel row `row` of a region, taps across inside the image: every pixel of it is there.
RowSource row_source(const ConvShape& s, const float* x, const Part& h, const Part& w, int row) {
  ConvShape part = s;
  part.kh = 1;
  part.kw = w.taps();
  RowSource r = conv_source(part, x, sizeof(float), 0, nullptr);
  r.spatial = true;
  r.padded = true;
  r.taps_h = 1, r.taps_w = w.taps();
  r.h = s.h, r.w = s.w;
  r.oh = h.outputs(), r.ow = w.outputs();
  r.line_stride = s.w * r.pixel_stride;
  r.image_stride = s.h * r.line_stride;
  r.stride_h = s.stride_h, r.stride_w = s.stride_w;
  r.dilation_h = s.dilation_h, r.dilation_w = s.dilation_w;
  r.pad_top = static_cast<int>(s.pad_top - h.begin * s.stride_h - int64_t{row} * s.dilation_h);
  r.pad_left = static_cast<int>(s.pad_left - w.begin * s.stride_w - int64_t{w.first} * s.dilation_w);
  return r;
}

/// Sums without taps are the bias.
void fill_bias(const ConvArgs& a, int64_t rows, float* sums) {
  const int64_t oc = a.shape.oc;
  for (int64_t r = 0; r < rows; ++r) {
    if (a.epilogue.bias != nullptr) {
      std::memcpy(sums + r * oc, a.epilogue.bias, static_cast<size_t>(oc) * sizeof(float));
    } else {
      std::fill_n(sums + r * oc, oc, 0.0f);
    }
  }
}

/// Residual and activation of the outputs of one region in one line.
void finish_run(const ConvArgs& a, const float* sums, int64_t pixel, int64_t pixels) {
  const Epilogue& e = a.epilogue;
  const int64_t oc = a.shape.oc;
  float* y = a.y + pixel * oc;
  const float* residual = e.residual ? e.residual + pixel * oc : nullptr;
  if (residual != nullptr && !e.act_before_residual) {
    for (int64_t i = 0; i < pixels * oc; ++i) y[i] = sums[i] + residual[i];
    residual = nullptr;
  } else {
    std::memcpy(y, sums, static_cast<size_t>(pixels * oc) * sizeof(float));
  }
  if (e.act != Activation::none || residual != nullptr)
    dense_kernels(a.weights.isa).activate({y, oc, pixels, oc, residual}, e);
}

void finish(const ConvArgs& a, const Parts& down, const Parts& across, const float* sums,
            base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  for_regions(s, down, across, [&](const Part& h, const Part& w, int64_t at) {
    const int64_t grain = 1 + 16384 / (w.outputs() * s.oc);
    pool.for_range(s.n * h.outputs(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t oh = line / h.outputs() * s.out_h() + h.begin + line % h.outputs();
        finish_run(a, sums + (at + line * w.outputs()) * s.oc, oh * s.out_w() + w.begin, w.outputs());
      }
    });
  });
}

}  // namespace

int64_t conv_inside_taps(const ConvShape& s) {
  return parts_of(vertical(s)).taps() * parts_of(horizontal(s)).taps();
}

bool conv_skips_padding(const ConvShape& s) {
  if (s.groups != 1 || s.c < kLeastChannels || s.kh > kMostTaps || s.kw > kMostTaps) return false;
  if (s.out_h() <= 0 || s.out_w() <= 0 || s.kh * s.kw == 1) return false;
  return 5 * conv_inside_taps(s) <= 4 * s.out_h() * s.out_w() * s.kh * s.kw;
}

size_t conv2d_inside_workspace_bytes(const ConvShape& s, int threads) {
  const Parts down = parts_of(vertical(s)), across = parts_of(horizontal(s));
  size_t most = 0;
  for_regions(s, down, across, [&](const Part& h, const Part& w, int64_t) {
    if (h.taps() == 0 || w.taps() == 0) return;
    const RowSource source = row_source(s, nullptr, h, w, 0);
    for (const Isa isa : usable_isas()) {
      const GemmPlan plan =
          plan_gemm(s.n * h.outputs() * w.outputs(), s.oc, source, dense_kernels(isa), {.threads = threads});
      most = std::max(most, static_cast<size_t>(plan.lanes) * plan.lane_bytes);
    }
  });
  return most + align64(static_cast<size_t>(s.n * s.out_h() * s.out_w() * s.oc) * sizeof(float)) + 128;
}

void conv2d_inside(const ConvArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  if (s.n == 0 || s.oc == 0) return;
  const Parts down = parts_of(vertical(s)), across = parts_of(horizontal(s));
  float* sums = reinterpret_cast<float*>(align64(workspace));  // [regions: n, rows, columns, oc]
  char* lanes = align64(sums + s.n * s.out_h() * s.out_w() * s.oc);
  GemmJob job;
  job.b = {args.weights.data, s.c * s.kh * s.kw, s.oc, args.weights.isa};
  job.ldc = s.oc;
  job.epilogue.bias = args.epilogue.bias;
  // The weights of a kernel row serve all regions before those of the next.
  for (int row = 0; row < s.kh; ++row) {
    for_regions(s, down, across, [&](const Part& h, const Part& w, int64_t at) {
      if (row < h.first || row >= h.last || w.taps() == 0) return;
      job.source = row_source(s, args.x, h, w, row);
      job.m = s.n * h.outputs() * w.outputs();
      job.c = sums + at * s.oc;
      job.first_k = (int64_t{row} * s.kw + w.first) * s.c;
      job.accumulates = row > h.first;
      const GemmPlan plan =
          plan_gemm(job.m, s.oc, job.source, dense_kernels(job.b.isa), {.threads = pool.size()});
      run_gemm(job, plan, lanes, pool);
    });
  }
  for_regions(s, down, across, [&](const Part& h, const Part& w, int64_t at) {
    if (h.taps() == 0 || w.taps() == 0) fill_bias(args, s.n * h.outputs() * w.outputs(), sums + at * s.oc);
  });
  finish(args, down, across, sums, pool);
}

}  // namespace trireme::cpu
