// Maxima of windows with their indices, one result row at a time: each tap is applied to the whole row.
#include <algorithm>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/pool/pool_lines_cpu.h"
#include "ops/pool/pool_walk.h"

namespace trireme::ops {
namespace {

using tensor::DType;

int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/// Scratch of one piece: a source row ordered by columns modulo the stride, and the index of each window's
/// maximum.
struct PlacesPlan {
  PoolPlan pool;
  int64_t rows = 0, pieces = 1;  // number of result rows; number of pieces
  int64_t phase = 0;             // columns with the same remainder

  int64_t line_bytes() const { return align_up(4 * phase * pool.window[2].stride); }
  int64_t piece_bytes() const { return line_bytes() + align_up(4 * pool.window[2].out); }
};

PlacesPlan plan_places(const ir::NodeView& node) {
  PlacesPlan plan{.pool = plan_pool(node)};
  const Window& win = plan.pool.window;
  plan.rows = plan.pool.planes * win[0].out * win[1].out;
  plan.pieces = std::min(kPoolPieces, plan.rows);
  plan.phase = (win[2].in + win[2].stride - 1) / win[2].stride;
  return plan;
}

/// A source row of a window; its first element has index `base` in its plane.
struct SourceRow {
  const float* x;
  int64_t base;
};

/// Applies all taps of one source row to the windows of a result row.
void meet_row(const PlacesPlan& plan, const SourceRow& row, float* line, float* best, int32_t* where) {
  const WindowAxis& w = plan.pool.window[2];
  const float* columns = row.x;
  if (w.stride > 1) {
    for (int64_t r = 0; r < w.stride; ++r) {
      for (int64_t i = r, to = r * plan.phase; i < w.in; i += w.stride) line[to++] = row.x[i];
    }
    columns = line;
  }
  for (int64_t k = 0; k < w.kernel; ++k) {
    const int64_t offset = k * w.dilation - w.pad_begin;
    const int64_t first = std::max<int64_t>(0, ceil_div(-offset, w.stride));
    const int64_t last = std::min(w.out, ceil_div(w.in - offset, w.stride));
    if (first >= last) continue;
    const int64_t column =
        first * w.stride + offset;  // of the first window for which the tap lies inside the row
    const int64_t at = column % w.stride * plan.phase + column / w.stride;
    cpu::place_maxima({.v = columns + at,
                       .n = last - first,
                       .first = static_cast<int32_t>(row.base + column),
                       .step = static_cast<int32_t>(w.stride),
                       .best = best + first,
                       .where = where + first});
  }
}

/// Computes result row `r`, counted over all planes.
void run_places_row(const PlacesPlan& plan, int64_t r, const ir::RunArgs& args, std::byte* scratch) {
  const Window& win = plan.pool.window;
  const int64_t high = win[1].out, deep = win[0].out, plane = r / (deep * high), out = win[2].out;
  const float* x = in_ptr<float>(args, 0) + plane * win.in_points();
  float* y = out_ptr<float>(args, 0) + r * out;
  auto* line = reinterpret_cast<float*>(scratch);
  auto* where = reinterpret_cast<int32_t*>(scratch + plan.line_bytes());
  std::fill_n(y, out, -std::numeric_limits<float>::infinity());
  std::fill_n(where, out, -1);
  const int64_t od = r / high % deep, oh = r % high;
  const TapRange td = taps_inside(win[0], od), th = taps_inside(win[1], oh);
  for (int64_t kd = td.first; kd < td.last; ++kd) {
    const int64_t d = od * win[0].stride - win[0].pad_begin + kd * win[0].dilation;
    for (int64_t kh = th.first; kh < th.last; ++kh) {
      const int64_t h = oh * win[1].stride - win[1].pad_begin + kh * win[1].dilation;
      const int64_t base = (d * win[1].in + h) * win[2].in;
      meet_row(plan, {x + base, base}, line, y, where);
    }
  }
  if (args.out[1] == nullptr) return;
  int64_t* indices = out_ptr<int64_t>(args, 1) + r * out;
  for (int64_t i = 0; i < out; ++i)
    indices[i] = stored_index(win, plane, std::max(where[i], 0), plan.pool.column_major);
}

ir::BoundKernel bind(const ir::NodeView& node) {
  const PlacesPlan plan = plan_places(node);
  return {[plan](const ir::RunArgs& args) {
            cpu::pool_of(args.stream).run(plan.pieces, [&](int64_t piece) {
              std::byte* scratch = static_cast<std::byte*>(args.workspace) + piece * plan.piece_bytes();
              for (int64_t r = plan.rows * piece / plan.pieces; r < plan.rows * (piece + 1) / plan.pieces;
                   ++r)
                run_places_row(plan, r, args, scratch);
            });
          },
          plan.pieces * plan.piece_bytes()};
}

ir::Refusal refuse_places(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  if (node.out.size() < 2) return "indices are no result";
  if (auto why = refuse_empty(node)) return why;
  const Window win = plan_pool(node).window;
  if (win.in_points() > INT32_MAX) return "places take more than 32 bits";
  if (win[2].stride > 8 * (win[2].in + win[2].out) + 4096) return "windows step far beyond the row";
  return std::nullopt;
}

}  // namespace

ir::Kernel placed_lines_kernel() {
  return {.name = "placed_lines", .refuse = refuse_places, .prepare = [](const ir::KernelInit& init) {
            return bind(init.node);
          }};
}

}  // namespace trireme::ops
