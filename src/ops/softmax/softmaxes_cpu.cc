// Kernels of softmax, log_softmax and hardmax on CPU.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/softmax_rows.h"
#include "ops/kernel_forms.h"
#include "ops/softmax/softmax_kernels.h"

namespace trireme::ops {
namespace {

/// Processes one line of n values that are `step` apart.
template <class T>
void softmax_line(const T* x, T* y, int64_t n, int64_t step, bool logarithm) {
  T top = x[0];
  for (int64_t i = 1; i < n; ++i) top = std::max(top, x[i * step]);
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T e = std::exp(x[i * step] - top);
    y[i * step] = e;
    sum += e;
  }
  const T log_sum = std::log(sum);
  for (int64_t i = 0; i < n; ++i) y[i * step] = logarithm ? x[i * step] - top - log_sum : y[i * step] / sum;
}

template <class T>
void hardmax_line(const T* x, T* y, int64_t n, int64_t step) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) best = x[i * step] > x[best * step] ? i : best;
  for (int64_t i = 0; i < n; ++i) y[i * step] = T(i == best);
}

/// A prepare function that calls line(x, y, n, step) for every line along the axis.
template <class LineFn>
PrepareFn by_line(LineFn line) {
  return [line](const ir::KernelInit& init) {
    const AxisLoops loops = softmax_loops(init.node);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      return ir::BoundKernel{[loops, line](const ir::RunArgs& args) {
        if (loops.n == 0) return;
        const int64_t grain = grain_for(18.0 * double(loops.n));
        cpu::pool_of(args.stream)
            .for_range(loops.outer * loops.inner, grain, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t at = i / loops.inner * loops.n * loops.inner + i % loops.inner;
                line(in_ptr<T>(args, 0) + at, out_ptr<T>(args, 0) + at, loops.n, loops.inner);
              }
            });
      }};
    });
  };
}

ir::Refusal refuse_vector(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  return refuse_dtype(node, 0, {tensor::DType::f32});
}

/// The CPU's vector kernel, with one pass in registers if a row fits.
ir::Kernel vector_softmax(bool logarithm) {
  auto prepare = [logarithm](const ir::KernelInit& init) {
    const AxisLoops loops = softmax_loops(init.node);
    return ir::BoundKernel{[loops, logarithm](const ir::RunArgs& args) {
      const cpu::SoftmaxAxis call{.x = in_ptr<float>(args, 0),
                                  .y = out_ptr<float>(args, 0),
                                  .outer = loops.outer,
                                  .axis = loops.n,
                                  .inner = loops.inner,
                                  .log = logarithm};
      cpu::softmax_axis(call, cpu::pool_of(args.stream));
    }};
  };
  return {.name = "vector", .refuse = refuse_vector, .prepare = prepare, .may_overwrite = 1};
}

/// One line of the gradient: dx = y (dy - sum dy y), or for the logarithm dy - e^y sum dy.
template <class T>
void softmax_grad_line(const T* dy, const T* y, T* dx, const AxisLoops& l, bool logarithm) {
  const int64_t step = l.inner;
  T sum = 0;
  for (int64_t i = 0; i < l.n; ++i) sum += logarithm ? dy[i * step] : dy[i * step] * y[i * step];
  for (int64_t i = 0; i < l.n; ++i) {
    const int64_t at = i * step;
    dx[at] = logarithm ? dy[at] - std::exp(y[at]) * sum : y[at] * (dy[at] - sum);
  }
}

PrepareFn gradient_by_line(bool logarithm) {
  return [logarithm](const ir::KernelInit& init) {
    const AxisLoops loops = softmax_loops(init.node);
    return visit_float(init.node.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      return ir::BoundKernel{[loops, logarithm](const ir::RunArgs& args) {
        if (loops.n == 0) return;
        cpu::pool_of(args.stream)
            .for_range(loops.outer * loops.inner, grain_for(6.0 * double(loops.n)),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i) {
                           const int64_t at = i / loops.inner * loops.n * loops.inner + i % loops.inner;
                           softmax_grad_line(in_ptr<T>(args, 0) + at, in_ptr<T>(args, 1) + at,
                                             out_ptr<T>(args, 0) + at, loops, logarithm);
                         }
                       });
      }};
    });
  };
}

ir::Kernel vector_softmax_grad(bool logarithm) {
  auto prepare = [logarithm](const ir::KernelInit& init) {
    const AxisLoops loops = softmax_loops(init.node);
    return ir::BoundKernel{[loops, logarithm](const ir::RunArgs& args) {
      const cpu::SoftmaxAxisGrad call{.y = in_ptr<float>(args, 1),
                                      .dy = in_ptr<float>(args, 0),
                                      .dx = out_ptr<float>(args, 0),
                                      .outer = loops.outer,
                                      .axis = loops.n,
                                      .inner = loops.inner,
                                      .log = logarithm};
      cpu::softmax_axis_grad(call, cpu::pool_of(args.stream));
    }};
  };
  return {.name = "vector", .refuse = refuse_vector, .prepare = prepare, .may_overwrite = 1};
}

}  // namespace

std::vector<ir::Kernel> softmax_grad_cpu_kernels(bool logarithm) {
  return faster({vector_softmax_grad(logarithm)}, float_reference(gradient_by_line(logarithm)));
}

std::vector<ir::Kernel> softmax_cpu_kernels() {
  auto line = [](const auto* x, auto* y, int64_t n, int64_t s) { softmax_line(x, y, n, s, false); };
  return faster({vector_softmax(false)}, float_reference(by_line(line)));
}

std::vector<ir::Kernel> log_softmax_cpu_kernels() {
  auto line = [](const auto* x, auto* y, int64_t n, int64_t s) { softmax_line(x, y, n, s, true); };
  return faster({vector_softmax(true)}, float_reference(by_line(line)));
}

std::vector<ir::Kernel> hardmax_cpu_kernels() {
  return float_reference(
      by_line([](const auto* x, auto* y, int64_t n, int64_t s) { hardmax_line(x, y, n, s); }));
}

}  // namespace trireme::ops
