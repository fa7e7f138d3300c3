// Kernels of window and global pooling on CPU: those by rows and vectors, then the reference, with one plane
// per task.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "ops/pool/pool_kernels.h"
#include "ops/pool/pool_lines_cpu.h"
#include "ops/pool/pool_walk.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

template <class T>
void max_plane(const PoolPlan& p, const T* x, T* y, int64_t* indices, int64_t plane) {
  for_points(p.window, [&](int64_t at, const std::array<int64_t, 3>& o) {
    const int64_t where = first_maximum(p.window, o, x);
    constexpr T kLowest = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                               : std::numeric_limits<T>::lowest();
    y[at] = where < 0 ? kLowest : x[where];
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

template <class T>
ir::BoundKernel bind_max_grad(const ir::NodeView& node) {
  const PoolPlan plan = plan_pool(node);
  return {[plan](const ir::RunArgs& args) {
    cpu::pool_of(args.stream).run(plan.planes, [&](int64_t i) {
      const T* x = in_ptr<T>(args, 0) + i * plan.window.in_points();
      const T* dy = in_ptr<T>(args, 1) + i * plan.window.out_points();
      T* dx = out_ptr<T>(args, 0) + i * plan.window.in_points();
      std::fill_n(dx, plan.window.in_points(), T(0));
      for_points(plan.window, [&](int64_t at, const std::array<int64_t, 3>& o) {
        const int64_t where = first_maximum(plan.window, o, x);
        if (where >= 0) dx[where] += dy[at];
      });
    });
  }};
}

ir::BoundKernel prepare_max_grad(const ir::KernelInit& init) {
  return visit_float(init.node.in[0].dtype, [&](auto t) { return bind_max_grad<decltype(t)>(init.node); });
}

/// Distributes dy of each result over its window, divided like the forward mean (with `sum`: undivided).
template <class T>
void average_grad_plane(const PoolPlan& p, bool sum, const T* dy, T* dx) {
  std::fill_n(dx, p.window.in_points(), T(0));
  for_points(p.window, [&](int64_t at, const std::array<int64_t, 3>& o) {
    int64_t count = 0;
    for_window(p.window, o, [&](int64_t) { ++count; });
    if (p.include_pad) {
      count =
          padded_taps(p.window[0], o[0]) * padded_taps(p.window[1], o[1]) * padded_taps(p.window[2], o[2]);
    }
    const T share = sum || count == 0 ? dy[at] : dy[at] / static_cast<T>(count);
    for_window(p.window, o, [&](int64_t i) { dx[i] += share; });
  });
}

ir::BoundKernel prepare_average_grad(const ir::KernelInit& init) {
  const ir::Attrs& attrs = init.node.attrs;
  const Dims x = init.node.out_dims(0);
  PoolPlan plan{.window = make_window(attrs, {}, {x.begin() + 2, x.end()}), .planes = x[0] * x[1]};
  plan.include_pad = attrs.get_int("count_include_pad", 0) != 0;
  const bool sum = attrs.get_int("sum", 0) != 0;
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan, sum](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.planes, [&](int64_t i) {
        average_grad_plane<T>(plan, sum, in_ptr<T>(args, 0) + i * plan.window.out_points(),
                              out_ptr<T>(args, 0) + i * plan.window.in_points());
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> max_pool_grad_cpu_kernels() { return float_reference(prepare_max_grad); }

std::vector<ir::Kernel> average_pool_grad_cpu_kernels() { return float_reference(prepare_average_grad); }

std::vector<ir::Kernel> max_pool_cpu_kernels() {
  const ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_max, .prepare = prepare_max};
  return faster({pool_lines_kernel(cpu::PoolFold::max), placed_lines_kernel()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> average_pool_cpu_kernels() {
  return faster(
      {pool_lines_kernel(cpu::PoolFold::average)},
      float_reference(by_plane([](const PoolPlan& p, const auto* x, auto* y) { average_plane(p, x, y); })));
}

std::vector<ir::Kernel> lp_pool_cpu_kernels() {
  return faster(
      {lp_lines_kernel()},
      float_reference(by_plane([](const PoolPlan& p, const auto* x, auto* y) { lp_plane(p, x, y); })));
}

std::vector<ir::Kernel> global_average_pool_cpu_kernels() {
  return faster({whole_planes_kernel(cpu::ReduceOp::mean)},
                float_reference(by_whole_plane([]<class T>(const T* x, int64_t n, int64_t) {
                  T sum = 0;
                  for (int64_t i = 0; i < n; ++i) sum += x[i];
                  return sum / static_cast<T>(n);
                })));
}

std::vector<ir::Kernel> global_max_pool_cpu_kernels() {
  return faster({whole_planes_kernel(cpu::ReduceOp::max)},
                float_reference(by_whole_plane([]<class T>(const T* x, int64_t n, int64_t) {
                  T best = -std::numeric_limits<T>::infinity();
                  for (int64_t i = 0; i < n; ++i) best = x[i] > best || x[i] != x[i] ? x[i] : best;
                  return best;
                })));
}

std::vector<ir::Kernel> global_lp_pool_cpu_kernels() {
  return faster({whole_planes_kernel(cpu::ReduceOp::l2)},
                float_reference(by_whole_plane([]<class T>(const T* x, int64_t n, int64_t p) {
                  T sum = 0;
                  for (int64_t i = 0; i < n; ++i) sum += lp_term(x[i], p);
                  return lp_root(sum, p);
                })));
}

}  // namespace trireme::ops
