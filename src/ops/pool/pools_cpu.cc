// Reference kernels of window and global pooling on CPU: one plane per task.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_stream.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "ops/pool/pool_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

struct PoolPlan {
  Window window;
  int64_t planes = 0;
  bool include_pad = false;   // average: padding counts in the divisor
  bool column_major = false;  // indices of max_pool
  int64_t p = 2;              // order of the Lp norm
};

PoolPlan plan_pool(const ir::NodeView& node) {
  const Dims x = node.in_dims(0);
  return {.window = make_window(node.attrs, {}, {x.begin() + 2, x.end()}),
          .planes = x[0] * x[1],
          .include_pad = node.attrs.get_int("count_include_pad", 0) != 0,
          .column_major = node.attrs.get_int("storage_order", 0) != 0,
          .p = node.attrs.get_int("p", 2)};
}

/// Taps of one axis that read inside the input when the result index is o: [first, last).
TapRange taps_inside(const WindowAxis& a, int64_t o) {
  const int64_t start = o * a.stride - a.pad_begin;
  const int64_t first = start >= 0 ? 0 : (-start + a.dilation - 1) / a.dilation;
  const int64_t last = std::min(a.kernel, start >= a.in ? 0 : (a.in - start + a.dilation - 1) / a.dilation);
  return {std::min(first, std::max<int64_t>(last, 0)), std::max<int64_t>(last, 0)};
}

/// Taps of one axis inside the padded input; a window of ceil_mode may reach beyond it.
int64_t padded_taps(const WindowAxis& a, int64_t o) {
  const int64_t start = o * a.stride - a.pad_begin, end = a.in + a.pad_end;
  return std::min(a.kernel, (end - start + a.dilation - 1) / a.dilation);
}

/// Calls visit(plane offset) for every input point of the window at result (d, h, w).
template <class F>
void for_window(const Window& win, const std::array<int64_t, 3>& o, F&& visit) {
  const TapRange td = taps_inside(win[0], o[0]), th = taps_inside(win[1], o[1]),
                 tw = taps_inside(win[2], o[2]);
  for (int64_t kd = td.first; kd < td.last; ++kd) {
    const int64_t d = o[0] * win[0].stride - win[0].pad_begin + kd * win[0].dilation;
    for (int64_t kh = th.first; kh < th.last; ++kh) {
      const int64_t h = o[1] * win[1].stride - win[1].pad_begin + kh * win[1].dilation;
      for (int64_t kw = tw.first; kw < tw.last; ++kw) {
        const int64_t w = o[2] * win[2].stride - win[2].pad_begin + kw * win[2].dilation;
        visit((d * win[1].in + h) * win[2].in + w);
      }
    }
  }
}

/// Calls point(result offset, result index) for every point of a result plane.
template <class F>
void for_points(const Window& win, F&& point) {
  std::array<int64_t, 3> o{};
  int64_t at = 0;
  for (o[0] = 0; o[0] < win[0].out; ++o[0]) {
    for (o[1] = 0; o[1] < win[1].out; ++o[1]) {
      for (o[2] = 0; o[2] < win[2].out; ++o[2]) point(at++, o);
    }
  }
}

/// Flat index of the maximum as ONNX counts it: over all planes, by rows or (storage_order 1) by columns.
int64_t stored_index(const Window& win, int64_t plane, int64_t offset, bool column_major) {
  if (!column_major) return plane * win.in_points() + offset;
  const int64_t w = offset % win[2].in, h = offset / win[2].in % win[1].in,
                d = offset / (win[2].in * win[1].in);
  return plane * win.in_points() + (w * win[1].in + h) * win[0].in + d;
}

template <class T>
void max_plane(const PoolPlan& p, const T* x, T* y, int64_t* indices, int64_t plane) {
  for_points(p.window, [&](int64_t at, const std::array<int64_t, 3>& o) {
    T best = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                  : std::numeric_limits<T>::lowest();
    int64_t where = -1;
    for_window(p.window, o, [&](int64_t i) {
      if (where < 0 || x[i] > best || x[i] != x[i]) {
        best = x[i];
        where = i;
      }
    });
    y[at] = best;
    if (indices != nullptr)
      indices[at] = stored_index(p.window, plane, std::max<int64_t>(where, 0), p.column_major);
  });
}

template <class T>
void average_plane(const PoolPlan& p, const T* x, T* y) {
  for_points(p.window, [&](int64_t at, const std::array<int64_t, 3>& o) {
    T sum = 0;
    int64_t count = 0;
    for_window(p.window, o, [&](int64_t i) {
      sum += x[i];
      ++count;
    });
    if (p.include_pad) {
      count =
          padded_taps(p.window[0], o[0]) * padded_taps(p.window[1], o[1]) * padded_taps(p.window[2], o[2]);
    }
    y[at] = count == 0 ? T(0) : sum / static_cast<T>(count);
  });
}

template <class T>
T lp_term(T v, int64_t p) {
  return p == 1 ? std::abs(v) : p == 2 ? v * v : std::pow(std::abs(v), static_cast<T>(p));
}

template <class T>
T lp_root(T sum, int64_t p) {
  return p == 1 ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, T(1) / static_cast<T>(p));
}

template <class T>
void lp_plane(const PoolPlan& p, const T* x, T* y) {
  for_points(p.window, [&](int64_t at, const std::array<int64_t, 3>& o) {
    T sum = 0;
    for_window(p.window, o, [&](int64_t i) { sum += lp_term(x[i], p.p); });
    y[at] = lp_root(sum, p.p);
  });
}

template <class T>
ir::BoundKernel bind_max(const ir::NodeView& node) {
  const PoolPlan plan = plan_pool(node);
  const bool indexed = node.out.size() > 1;
  return {[plan, indexed](const ir::RunArgs& args) {
    cpu::pool_of(args.stream).run(plan.planes, [&](int64_t i) {
      const int64_t out = i * plan.window.out_points();
      int64_t* indices = indexed && args.out[1] != nullptr ? out_ptr<int64_t>(args, 1) + out : nullptr;
      max_plane<T>(plan, in_ptr<T>(args, 0) + i * plan.window.in_points(), out_ptr<T>(args, 0) + out, indices,
                   i);
    });
  }};
}

ir::BoundKernel prepare_max(const ir::KernelInit& init) {
  return tensor::visit_dtype(init.node.in[0].dtype, [&](auto t) -> ir::BoundKernel {
    using T = decltype(t);
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      return bind_max<T>(init.node);
    } else {
      base::fail_unsupported("max_pool has no order on ", name_of(init.node.in[0].dtype));
    }
  });
}

ir::Refusal refuse_max(const ir::NodeView& n) {
  return refuse_dtype(n, 0,
                      {DType::f32, DType::f64, DType::i8, DType::u8, DType::i16, DType::u16, DType::i32,
                       DType::u32, DType::i64, DType::u64});
}

/// A prepare function that runs plane(plan, x, y) for every plane.
template <class PlaneFn>
PrepareFn by_plane(PlaneFn plane) {
  return [plane](const ir::KernelInit& init) {
    const PoolPlan plan = plan_pool(init.node);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      return ir::BoundKernel{[plan, plane](const ir::RunArgs& args) {
        cpu::pool_of(args.stream).run(plan.planes, [&](int64_t i) {
          plane(plan, in_ptr<T>(args, 0) + i * plan.window.in_points(),
                out_ptr<T>(args, 0) + i * plan.window.out_points());
        });
      }};
    });
  };
}

/// A prepare function that reduces each plane of `points` values with reduce(x, points, p).
template <class ReduceFn>
PrepareFn by_whole_plane(ReduceFn reduce) {
  return [reduce](const ir::KernelInit& init) {
    const Dims x = init.node.in_dims(0);
    const int64_t planes = x[0] * x[1], points = product(x, 2, x.size()), p = init.node.attrs.get_int("p", 2);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      return ir::BoundKernel{[=](const ir::RunArgs& args) {
        cpu::pool_of(args.stream)
            .for_range(planes, grain_for(double(points)), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                out_ptr<T>(args, 0)[i] = reduce(in_ptr<T>(args, 0) + i * points, points, p);
              }
            });
      }};
    });
  };
}

}  // namespace

std::vector<ir::Kernel> max_pool_cpu_kernels() {
  const ir::Kernel plain{.name = "reference", .refuse = refuse_max, .prepare = prepare_max};
  return {plain, via_f32(plain)};
}

std::vector<ir::Kernel> average_pool_cpu_kernels() {
  return float_reference(by_plane([](const PoolPlan& p, const auto* x, auto* y) { average_plane(p, x, y); }));
}

std::vector<ir::Kernel> lp_pool_cpu_kernels() {
  return float_reference(by_plane([](const PoolPlan& p, const auto* x, auto* y) { lp_plane(p, x, y); }));
}

std::vector<ir::Kernel> global_average_pool_cpu_kernels() {
  return float_reference(by_whole_plane([]<class T>(const T* x, int64_t n, int64_t) {
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    return sum / static_cast<T>(n);
  }));
}

std::vector<ir::Kernel> global_max_pool_cpu_kernels() {
  return float_reference(by_whole_plane([]<class T>(const T* x, int64_t n, int64_t) {
    T best = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < n; ++i) best = x[i] > best || x[i] != x[i] ? x[i] : best;
    return best;
  }));
}

std::vector<ir::Kernel> global_lp_pool_cpu_kernels() {
  return float_reference(by_whole_plane([]<class T>(const T* x, int64_t n, int64_t p) {
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += lp_term(x[i], p);
    return lp_root(sum, p);
  }));
}

}  // namespace trireme::ops
