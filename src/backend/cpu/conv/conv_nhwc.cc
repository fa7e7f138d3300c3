// Turns a convolution into products of row-pointer sources, one per group.
#include "backend/cpu/conv/conv_nhwc.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/conv/conv_inside.h"
#include "backend/cpu/conv/conv_pack.h"
#include "backend/cpu/conv/conv_planes.h"
#include "backend/cpu/conv/conv_source.h"
#include "backend/cpu/device/round_up.h"
#include "base/error.h"

namespace trireme::cpu {
namespace {

int64_t group_depth(const ConvShape& s) { return s.c / s.groups * s.kh * s.kw; }

bool copies_input(const ConvShape& s, ImageLayout layout) {
  return layout == ImageLayout::nchw || conv_wants_padded_copy(s);
}

/// One line of the padded channels-last copy: out[wp, c] from image line `line` (may lie outside).
void copy_float_line(const ConvArgs& a, int64_t image, int64_t line, float* out) {
  const ConvShape& s = a.shape;
  const int64_t wp = s.w + s.pad_left + s.pad_right;
  if (line < 0 || line >= s.h) {
    std::memset(out, 0, static_cast<size_t>(wp * s.c) * sizeof(float));
    return;
  }
  std::memset(out, 0, static_cast<size_t>(s.pad_left * s.c) * sizeof(float));
  std::memset(out + (s.pad_left + s.w) * s.c, 0, static_cast<size_t>(s.pad_right * s.c) * sizeof(float));
  out += s.pad_left * s.c;
  if (a.x_layout == ImageLayout::nhwc) {
    std::memcpy(out, a.x + (image * s.h + line) * s.w * s.c, static_cast<size_t>(s.w * s.c) * sizeof(float));
    return;
  }
  const int64_t plane = s.h * s.w;
  const float* x = a.x + image * s.c * plane + line * s.w;
  if (s.c == 3) {
    for (int64_t i = 0; i < s.w; ++i) {
      out[3 * i] = x[i];
      out[3 * i + 1] = x[plane + i];
      out[3 * i + 2] = x[2 * plane + i];
    }
    return;
  }
  for (int64_t c = 0; c < s.c; ++c) {
    for (int64_t i = 0; i < s.w; ++i) out[i * s.c + c] = x[c * plane + i];
  }
}

void copy_padded_floats(const ConvArgs& a, float* out, base::ThreadPool& pool) {
  const ConvShape& s = a.shape;
  const int64_t hp = s.h + s.pad_top + s.pad_bottom;
  const int64_t line_floats = (s.w + s.pad_left + s.pad_right) * s.c;
  pool.for_range(s.n * hp, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_float_line(a, i / hp, i % hp - s.pad_top, out + i * line_floats);
  });
}

/// Rows [columns, depth, taps] of one group as [columns, taps, depth]: the channels-last order.
std::vector<float> taps_first(const float* from, int64_t columns, const WeightView& v) {
  const int64_t taps = v.taps();
  std::vector<float> rows(static_cast<size_t>(columns * v.depth * taps));
  for (int64_t o = 0; o < columns; ++o) {
    for (int64_t c = 0; c < v.depth; ++c) {
      for (int64_t t = 0; t < taps; ++t)
        rows[static_cast<size_t>((o * taps + t) * v.depth + c)] = from[(o * v.depth + c) * taps + t];
    }
  }
  return rows;
}

}  // namespace

bool conv_packs_planes(const ConvShape& shape, ImageLayout x_layout) {
  return conv_reads_planes(shape, x_layout) || conv_reads_plane_runs(shape, x_layout);
}

size_t packed_conv_bytes(const ConvShape& shape, Isa isa) {
  const size_t group = align64(packed_b_bytes(group_depth(shape), shape.oc / shape.groups, isa));
  return group * static_cast<size_t>(shape.groups) + kAlignment;
}

PackedConv pack_conv(const ConvWeights& weights, void* memory, base::ThreadPool& pool) {
  const ConvShape& s = weights.shape;
  const bool planes = conv_packs_planes(s, weights.x_layout);
  const WeightView view = forward_view(s, weights.data);
  // Planes are read channel by channel, as the taps stand in memory.
  const bool is_in_order = planes || view.taps() == 1;
  if (!is_in_order && pack_view_takes(view)) return pack_view(view, memory, pool, weights.isa);
  const int64_t depth = group_depth(s), og = view.columns;
  char* out = align64(memory);
  const size_t group_bytes = align64(packed_b_bytes(depth, og, weights.isa));
  PackedConv packed = {nullptr, static_cast<int64_t>(group_bytes / sizeof(float)), weights.isa, planes};
  for (int64_t g = 0; g < s.groups; ++g) {
    const float* rows = weights.data + g * og * depth;
    std::vector<float> turned;
    if (!is_in_order) rows = (turned = taps_first(rows, og, view)).data();
    const PackedMatrix b =
        pack_b({rows, depth, og, depth, true}, out + static_cast<size_t>(g) * group_bytes, pool, weights.isa);
    if (g == 0) packed.data = b.data;
  }
  return packed;
}

PackedConv pack_conv(const ConvShape& shape, const float* weights, void* memory, Isa isa,
                     ImageLayout x_layout) {
  base::ThreadPool alone(1);
  return pack_conv({shape, weights, x_layout, isa}, memory, alone);
}

size_t conv2d_workspace_bytes(const ConvShape& shape, ImageLayout x_layout, int threads) {
  if (conv_reads_plane_runs(shape, x_layout)) return conv_plane_runs_workspace_bytes(shape, threads);
  const int64_t element = sizeof(float);
  const bool copies = copies_input(shape, x_layout);
  const int64_t m = shape.n * shape.out_h() * shape.out_w();
  const RowSource source = copies ? conv_padded_source(shape, nullptr, element, 0)
                                  : conv_source(shape, nullptr, element, 0, nullptr);
  size_t lanes = 0;
  for (const Isa isa : usable_isas()) {
    const GemmPlan plan =
        plan_gemm(m, shape.oc / shape.groups, source, dense_kernels(isa), {.threads = threads});
    lanes = std::max(lanes, static_cast<size_t>(plan.lanes) * plan.lane_bytes);
  }
  const int64_t front = copies ? conv_padded_elements(shape) : shape.c / shape.groups;
  if (!copies && conv_skips_padding(shape)) return conv2d_inside_workspace_bytes(shape, threads);
  const size_t planes = conv_reads_planes(shape, x_layout) ? conv_planes_workspace_bytes(shape, threads) : 0;
  return std::max(planes, lanes + align64(static_cast<size_t>(front * element)) + 2 * kAlignment);
}

void conv2d_nhwc(const ConvArgs& args, void* workspace, base::ThreadPool& pool) {
  const ConvShape& s = args.shape;
  base::check(!args.weights.by_planes || args.x_layout == ImageLayout::nchw,
              "weights were packed for planes");
  if (args.weights.by_planes && conv_reads_planes(s, args.x_layout))
    return conv2d_planes(args, workspace, pool);
  if (args.weights.by_planes) return conv2d_plane_runs(args, workspace, pool);
  const bool copies = copies_input(s, args.x_layout);
  if (!copies && conv_skips_padding(s)) return conv2d_inside(args, workspace, pool);
  float* front = reinterpret_cast<float*>(align64(workspace));  // padded image, or one pixel of zeros
  const int64_t front_floats = copies ? conv_padded_elements(s) : s.c / s.groups;
  char* lanes = align64(reinterpret_cast<char*>(front + front_floats));
  if (copies) {
    copy_padded_floats(args, front, pool);
  } else {
    std::memset(front, 0, static_cast<size_t>(front_floats) * sizeof(float));
  }
  const int64_t og = s.oc / s.groups;
  GemmJob job;
  job.m = s.n * s.out_h() * s.out_w();
  job.ldc = s.oc;
  for (int64_t g = 0; g < s.groups; ++g) {
    job.source = copies ? conv_padded_source(s, front, sizeof(float), g)
                        : conv_source(s, args.x, sizeof(float), g, front);
    job.b = {args.weights.data + g * args.weights.group_floats, group_depth(s), og, args.weights.isa};
    job.c = args.y + g * og;
    job.epilogue = args.epilogue;
    if (job.epilogue.bias) job.epilogue.bias += g * og;
    if (job.epilogue.residual) job.epilogue.residual += g * og;
    const GemmPlan plan =
        plan_gemm(job.m, og, job.source, dense_kernels(job.b.isa), {.threads = pool.size()});
    run_gemm(job, plan, lanes, pool);
  }
}

}  // namespace trireme::cpu
