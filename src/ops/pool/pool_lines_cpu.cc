// Window pooling of planes by whole rows, and pooling of whole planes by vector reductions.
#include "ops/pool/pool_lines_cpu.h"

#include <algorithm>

#include "backend/cpu/conv/pool_planes.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/reduce_axes.h"
#include "ops/pool/pool_walk.h"

namespace trireme::ops {
namespace {

using tensor::DType;

constexpr int64_t kMostRows = 512;  // rows of a window, over depth and height

struct LinePlan {
  PoolPlan pool;
  cpu::PoolFold fold;
  DType dtype;
  int64_t width = 0, pieces = 1, rows = 0;  // width of the joint row; number of pieces; number of result rows
  std::vector<float> column_count;          // [out w]: taps that the divisor of an average counts
};

/// Elements of a joint row including its padding, as far as windows reach.
int64_t width_of(const WindowAxis& w) { return (w.out - 1) * w.stride + w.reach(); }

LinePlan plan_lines(const ir::NodeView& node, cpu::PoolFold fold) {
  LinePlan plan{.pool = plan_pool(node), .fold = fold, .dtype = node.in[0].dtype};
  const Window& win = plan.pool.window;
  const WindowAxis& w = win[2];
  plan.width = std::max(width_of(w), w.pad_begin);
  plan.rows = plan.pool.planes * win[0].out * win[1].out;
  plan.pieces = std::min(kPoolPieces, plan.rows);
  for (int64_t o = 0; o < w.out; ++o) {
    const TapRange taps = taps_inside(w, o);
    const int64_t count = plan.pool.include_pad ? padded_taps(w, o) : taps.last - taps.first;
    plan.column_count.push_back(static_cast<float>(count));
  }
  return plan;
}

int64_t row_bytes(const LinePlan& plan) { return align_up(plan.width * tensor::bits_of(plan.dtype) / 8); }

/// Scratch of one piece: the joint row, followed by the divisors of its result row.
int64_t piece_bytes(const LinePlan& plan) {
  return row_bytes(plan) + align_up(static_cast<int64_t>(plan.column_count.size() * sizeof(float)));
}

/// Computes result row (d, h) of a plane that starts at x.
void run_row(const LinePlan& plan, const std::byte* x, std::array<int64_t, 2> o, std::byte* y,
             std::byte* scratch) {
  const Window& win = plan.pool.window;
  const TapRange td = taps_inside(win[0], o[0]), th = taps_inside(win[1], o[1]);
  const int64_t bytes = tensor::bits_of(plan.dtype) / 8;
  const void* rows[kMostRows];
  int64_t count = 0;
  for (int64_t kd = td.first; kd < td.last; ++kd) {
    const int64_t d = o[0] * win[0].stride - win[0].pad_begin + kd * win[0].dilation;
    for (int64_t kh = th.first; kh < th.last; ++kh) {
      const int64_t h = o[1] * win[1].stride - win[1].pad_begin + kh * win[1].dilation;
      rows[count++] = x + (d * win[1].in + h) * win[2].in * bytes;
    }
  }
  float* divisor = reinterpret_cast<float*>(scratch + row_bytes(plan));
  if (plan.fold == cpu::PoolFold::average) {
    const int64_t high =
        plan.pool.include_pad ? padded_taps(win[0], o[0]) * padded_taps(win[1], o[1]) : count;
    for (size_t i = 0; i < plan.column_count.size(); ++i) {
      divisor[i] = std::max(1.0f, plan.column_count[i] * static_cast<float>(high));
    }
  }
  cpu::pool_row({.fold = plan.fold,
                 .dtype = plan.dtype,
                 .rows = rows,
                 .row_count = count,
                 .in = win[2].in,
                 .pad = win[2].pad_begin,
                 .width = plan.width,
                 .kernel = win[2].kernel,
                 .stride = win[2].stride,
                 .dilation = win[2].dilation,
                 .out = win[2].out,
                 .count = divisor,
                 .line = scratch,
                 .y = y});
}

ir::BoundKernel bind_lines(const ir::NodeView& node, cpu::PoolFold fold) {
  const auto plan = std::make_shared<const LinePlan>(plan_lines(node, fold));
  return {[plan](const ir::RunArgs& args) {
            const Window& win = plan->pool.window;
            const int64_t bytes = tensor::bits_of(plan->dtype) / 8, high = win[1].out, deep = win[0].out;
            cpu::pool_of(args.stream).run(plan->pieces, [&](int64_t piece) {
              std::byte* scratch = static_cast<std::byte*>(args.workspace) + piece * piece_bytes(*plan);
              for (int64_t r = plan->rows * piece / plan->pieces; r < plan->rows * (piece + 1) / plan->pieces;
                   ++r) {
                const std::byte* x = in_ptr<std::byte>(args, 0) + r / (deep * high) * win.in_points() * bytes;
                run_row(*plan, x, {r / high % deep, r % high},
                        out_ptr<std::byte>(args, 0) + r * win[2].out * bytes, scratch);
              }
            });
          },
          plan->pieces * piece_bytes(*plan)};
}

ir::Refusal refuse_lines(const ir::NodeView& node, cpu::PoolFold fold) {
  if (node.in[0].dtype != DType::f32) {
    if (fold != cpu::PoolFold::max) return "rows are summed in f32";
    if (auto why = refuse_dtype(node, 0, {DType::u8, DType::i8})) return why;
  }
  if (node.out.size() > 1 && node.out[1].shape.rank() > 0) return "indices are a result";
  if (tensor::element_count(node.in_dims(0)) == 0 || tensor::element_count(node.out_dims(0)) == 0)
    return "an operand or the result has no elements";
  const Window win = plan_pool(node).window;
  if (win[0].kernel * win[1].kernel > kMostRows) return "a window has very many rows";
  if (win[2].pad_begin < 0) return "windows leave out the first columns";
  if (width_of(win[2]) > 8 * (win[2].in + win[2].out) + 4096) return "windows reach far beyond the row";
  return std::nullopt;
}

}  // namespace

ir::Kernel pool_lines_kernel(cpu::PoolFold fold) {
  return {.name = "lines",
          .refuse = [fold](const ir::NodeView& n) { return refuse_lines(n, fold); },
          .prepare = [fold](const ir::KernelInit& init) { return bind_lines(init.node, fold); }};
}

ir::Kernel lp_lines_kernel() {
  const auto fold_of = [](const ir::NodeView& n) {
    return n.attrs.get_int("p", 2) == 1 ? cpu::PoolFold::l1 : cpu::PoolFold::l2;
  };
  return {
      .name = "lines",
      .refuse = [fold_of](const ir::NodeView& n) -> ir::Refusal {
        const int64_t p = n.attrs.get_int("p", 2);
        if (p != 1 && p != 2) return "the order of the norm is neither 1 nor 2";
        return refuse_lines(n, fold_of(n));
      },
      .prepare = [fold_of](const ir::KernelInit& init) { return bind_lines(init.node, fold_of(init.node)); }};
}

ir::Kernel whole_planes_kernel(cpu::ReduceOp op) {
  const auto op_of = [op](const ir::NodeView& n) {
    return op == cpu::ReduceOp::l2 && n.attrs.get_int("p", 2) == 1 ? cpu::ReduceOp::l1 : op;
  };
  return {
      .name = "vector",
      .refuse = [op](const ir::NodeView& n) -> ir::Refusal {
        if (auto why = refuse_empty(n)) return why;
        const int64_t p = n.attrs.get_int("p", 2);
        if (op == cpu::ReduceOp::l2 && p != 1 && p != 2) return "the order of the norm is neither 1 nor 2";
        return refuse_dtype(n, 0, {DType::f32});
      },
      .prepare = [op_of](const ir::KernelInit& init) -> ir::BoundKernel {
        const tensor::Dims x = init.node.in_dims(0);
        const cpu::ReduceOp reduction = op_of(init.node);
        const int64_t planes = x[0] * x[1], points = product(x, 2, x.size());
        return {[=](const ir::RunArgs& args) {
          cpu::reduce(
              reduction,
              {.x = in_ptr<float>(args, 0), .y = out_ptr<float>(args, 0), .outer = planes, .axis = points},
              cpu::pool_of(args.stream));
        }};
      }};
}

}  // namespace trireme::ops
