// CPU kernels along one axis of [outer, axis, inner]: arg_max, arg_min, cum_sum, cum_prod.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/reduce_axes.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/reduce/reduce.h"

namespace trireme::ops {
namespace {

/// The extents of a tensor around and along one axis.
struct AxisView {
  int64_t outer = 1, axis = 1, inner = 1;
  AxisView(const tensor::Dims& dims, size_t at) : axis(dims.empty() ? 1 : dims[at]) {
    for (size_t d = 0; d < dims.size(); ++d)
      (d < at ? outer : d > at ? inner : axis) *= d == at ? 1 : dims[d];
  }
};

template <class T>
void arg_lane(const T* x, const AxisView& v, bool is_max, bool takes_last, int64_t* y) {
  using C = Arithmetic<T>;
  C best = static_cast<C>(x[0]);
  int64_t at = 0;
  for (int64_t i = 1; i < v.axis; ++i) {
    const C c = static_cast<C>(x[i * v.inner]);
    // NaN counts as larger (or smaller) than any number, as in NumPy.
    const bool is_better = (is_max ? c > best : c < best) || (c != c && best == best);
    const bool is_equal = c == best || (c != c && best != best);
    if (is_better || (takes_last && is_equal)) {
      best = c;
      at = i;
    }
  }
  *y = at;
}

ir::BoundKernel prepare_arg(const ir::NodeView& n, bool is_max) {
  const tensor::Dims dims = n.in_dims(0);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), dims.size());
  const AxisView v(dims, axis);
  const bool takes_last = n.attrs.get_int("select_last_index", 0) != 0;
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
      const T* x = static_cast<const T*>(args.in[0]);
      int64_t* y = static_cast<int64_t*>(args.out[0]);
      const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, v.axis));
      cpu::pool_of(args.stream).for_range(v.outer * v.inner, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          arg_lane(x + i / v.inner * v.axis * v.inner + i % v.inner, v, is_max, takes_last, y + i);
        }
      });
    }};
  });
}

template <class T, bool kProduct>
void scan_lane(const T* x, T* y, const AxisView& v, bool is_exclusive, bool is_reverse) {
  using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  A total = kProduct ? A(1) : A(0);
  for (int64_t k = 0; k < v.axis; ++k) {
    const int64_t i = (is_reverse ? v.axis - 1 - k : k) * v.inner;
    const A c = static_cast<A>(static_cast<Arithmetic<T>>(x[i]));
    const A next = kProduct ? total * c : total + c;
    y[i] = static_cast<T>(is_exclusive ? total : next);
    total = next;
  }
}

constexpr int64_t kScanColumns = 64;  // adjacent lanes, whose totals stay in the L1 cache

struct ScanKind {
  bool is_exclusive, is_reverse;
};

/// Scans adjacent lanes [0, n), each like scan_lane.
template <class T, bool kProduct>
void scan_columns(const T* x, T* y, const AxisView& v, int64_t n, const ScanKind& kind) {
  using A = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  A total[kScanColumns];
  std::fill_n(total, n, kProduct ? A(1) : A(0));
  for (int64_t k = 0; k < v.axis; ++k) {
    const int64_t row = (kind.is_reverse ? v.axis - 1 - k : k) * v.inner;
    for (int64_t i = 0; i < n; ++i) {
      const A c = static_cast<A>(static_cast<Arithmetic<T>>(x[row + i]));
      const A next = kProduct ? total[i] * c : total[i] + c;
      y[row + i] = static_cast<T>(kind.is_exclusive ? total[i] : next);
      total[i] = next;
    }
  }
}

template <bool kProduct>
ir::BoundKernel prepare_scan(const ir::NodeView& n) {
  const tensor::Dims dims = n.in_dims(0);
  const size_t axis = ir::normal_axis(n.value(1)->to_ints().at(0), dims.size());
  const AxisView v(dims, axis);
  const bool is_exclusive = n.attrs.get_int("exclusive", 0) != 0,
             is_reverse = n.attrs.get_int("reverse", 0) != 0;
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
      const T* x = static_cast<const T*>(args.in[0]);
      T* y = static_cast<T*>(args.out[0]);
      if (v.inner > 1) {
        const int64_t blocks = (v.inner + kScanColumns - 1) / kScanColumns;
        cpu::pool_of(args.stream).for_range(v.outer * blocks, 1, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) {
            const int64_t column = b % blocks * kScanColumns, first = b / blocks * v.axis * v.inner + column;
            scan_columns<T, kProduct>(x + first, y + first, v, std::min(kScanColumns, v.inner - column),
                                      {is_exclusive, is_reverse});
          }
        });
        return;
      }
      cpu::pool_of(args.stream).for_range(v.outer * v.inner, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t first = i / v.inner * v.axis * v.inner + i % v.inner;
          scan_lane<T, kProduct>(x + first, y + first, v, is_exclusive, is_reverse);
        }
      });
    }};
  });
}

/// dx_i = (product of x before i) s_i, where s_i is the sum over j >= i of dy_j times the product of x
/// between i and j, computed by s_i = dy_i + x_(i+1) s_(i+1); exclusive products use dy one place later.
/// Zeros in x need no special case. Directions are those of the forward scan.
struct ProdGrad {
  AxisView v;
  bool is_exclusive, is_reverse;
};

template <class T>
void prod_grad_lane(const ProdGrad& g, const T* dy, const T* x, T* dx, double* before) {
  const AxisView& v = g.v;
  const auto at = [&](int64_t k) { return (g.is_reverse ? v.axis - 1 - k : k) * v.inner; };
  const auto value = [](T c) { return static_cast<double>(static_cast<Arithmetic<T>>(c)); };
  double product = 1;
  for (int64_t k = 0; k < v.axis; ++k) {
    before[k] = product;
    product *= value(x[at(k)]);
  }
  double sum = 0;
  for (int64_t k = v.axis; k-- > 0;) {
    const double carried = k + 1 < v.axis ? value(x[at(k + 1)]) * sum : 0;
    const double own = !g.is_exclusive ? value(dy[at(k)]) : k + 1 < v.axis ? value(dy[at(k + 1)]) : 0;
    sum = own + carried;
    dx[at(k)] = static_cast<T>(before[k] * sum);
  }
}

ir::BoundKernel prepare_prod_grad(const ir::NodeView& n) {
  const tensor::Dims dims = n.in_dims(0);
  const AxisView v(dims, ir::normal_axis(n.value(2)->to_ints().at(0), dims.size()));
  const ProdGrad g{v, n.attrs.get_int("exclusive", 0) != 0, n.attrs.get_int("reverse", 0) != 0};
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[g](const ir::RunArgs& args) {
              // Runs on one thread, since the workspace has room for the products of one lane.
              for (int64_t i = 0; i < g.v.outer * g.v.inner; ++i) {
                const int64_t first = i / g.v.inner * g.v.axis * g.v.inner + i % g.v.inner;
                prod_grad_lane<T>(g, static_cast<const T*>(args.in[0]) + first,
                                  static_cast<const T*>(args.in[1]) + first,
                                  static_cast<T*>(args.out[0]) + first, static_cast<double*>(args.workspace));
              }
            },
            v.axis * static_cast<int64_t>(sizeof(double))};
  });
}

}  // namespace

std::vector<ir::Kernel> cum_prod_grad_cpu_kernels() {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.value(2) == nullptr) return "the axis is not known before the run";
    return std::nullopt;
  };
  k.prepare = [](const ir::KernelInit& init) { return prepare_prod_grad(init.node); };
  return {k};
}

std::vector<ir::Kernel> arg_cpu_kernels(bool is_max) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.prepare = [is_max](const ir::KernelInit& init) { return prepare_arg(init.node, is_max); };
  ir::Kernel fast{.name = "vector"};
  fast.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in[0].dtype != tensor::DType::f32) return "the vector toolkit computes f32";
    if (tensor::element_count(n.in_dims(0)) == 0) return "there is nothing to compare";
    return std::nullopt;
  };
  fast.prepare = [is_max](const ir::KernelInit& init) -> ir::BoundKernel {
    const tensor::Dims dims = init.node.in_dims(0);
    const AxisView v(dims, ir::normal_axis(init.node.attrs.get_int("axis", 0), dims.size()));
    const bool takes_last = init.node.attrs.get_int("select_last_index", 0) != 0;
    return {[=](const ir::RunArgs& args) {
      cpu::arg_reduce({.x = static_cast<const float*>(args.in[0]),
                       .y = static_cast<int64_t*>(args.out[0]),
                       .outer = v.outer,
                       .axis = v.axis,
                       .inner = v.inner,
                       .min = !is_max,
                       .last = takes_last},
                      cpu::pool_of(args.stream));
    }};
  };
  return {fast, k};
}

std::vector<ir::Kernel> scan_cpu_kernels(bool is_product) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.value(1) == nullptr) return "the axis is not known before the run";
    return std::nullopt;
  };
  k.prepare = [is_product](const ir::KernelInit& init) {
    return is_product ? prepare_scan<true>(init.node) : prepare_scan<false>(init.node);
  };
  return {k};
}

}  // namespace trireme::ops
