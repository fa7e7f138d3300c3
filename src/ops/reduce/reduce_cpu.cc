// Reductions on CPU: every result is one accumulation in a fixed order in double (or 64-bit integers; the
// mean of these in 128 bits).
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/reduce_axes.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/reduce/reduce.h"

namespace trireme::ops {
namespace {

/// The dimensions of x in two groups; adjacent ones of a group are merged.
struct ReduceGroups {
  tensor::Dims kept, gone;
  std::vector<int64_t> kept_steps, gone_steps;  // steps in x
  int64_t results = 1, terms = 1;
  int64_t columns = 1;  // adjacent results with adjacent operands, which are accumulated together
};

ReduceGroups group_dims(const tensor::Dims& dims, const std::vector<bool>& reduced) {
  const std::vector<int64_t> steps = dense_steps(dims);
  ReduceGroups plan;
  for (size_t d = 0; d < dims.size(); ++d) {
    tensor::Dims& extents = reduced[d] ? plan.gone : plan.kept;
    std::vector<int64_t>& group_steps = reduced[d] ? plan.gone_steps : plan.kept_steps;
    (reduced[d] ? plan.terms : plan.results) *= dims[d];
    if (dims[d] == 1) continue;
    if (!extents.empty() && group_steps.back() == steps[d] * dims[d]) {
      extents.back() *= dims[d];
      group_steps.back() = steps[d];
    } else {
      extents.push_back(dims[d]);
      group_steps.push_back(steps[d]);
    }
  }
  if (!plan.kept.empty() && plan.kept_steps.back() == 1) plan.columns = plan.kept.back();
  return plan;
}

/// Offset in x of the i-th element of a group, in row-major order of the group.
int64_t offset_of(int64_t i, const tensor::Dims& extents, const std::vector<int64_t>& steps) {
  int64_t offset = 0;
  for (size_t d = extents.size(); d-- > 0;) {
    offset += i % extents[d] * steps[d];
    i /= extents[d];
  }
  return offset;
}

template <class T>
using Accumulator = std::conditional_t<std::is_integral_v<T>,
                                       std::conditional_t<std::is_unsigned_v<T>, uint64_t, int64_t>, double>;

/// A mean lies between its terms, so their sum may not wrap around: 128 bits hold any sum of 64-bit integers.
template <Reduction kKind, class T>
constexpr bool kWideMean = kKind == Reduction::mean&& std::is_integral_v<T> && sizeof(T) == 8;
template <Reduction kKind, class T>
using TotalOf = std::conditional_t<kWideMean<kKind, T>, __int128, Accumulator<T>>;

/// How a reduction starts, joins a term, and finishes its total.
template <Reduction kKind, class A>
struct Rule {
  static A start() {
    using Limits = std::numeric_limits<A>;
    if constexpr (kKind == Reduction::max)
      return std::is_integral_v<A> ? Limits::lowest() : -Limits::infinity();
    if constexpr (kKind == Reduction::min) return std::is_integral_v<A> ? Limits::max() : Limits::infinity();
    return kKind == Reduction::prod ? A(1) : A(0);
  }
  /// `shift` is the largest term of log_sum_exp, else 0.
  static A join(A total, A x, A shift) {
    if constexpr (kKind == Reduction::max) return x > total || x != x ? x : total;
    if constexpr (kKind == Reduction::min) return x < total || x != x ? x : total;
    if constexpr (kKind == Reduction::prod) return static_cast<A>(Wide(total) * Wide(x));
    if constexpr (kKind == Reduction::l1) return static_cast<A>(Wide(total) + Wide(x < A(0) ? A(0) - x : x));
    if constexpr (kKind == Reduction::l2 || kKind == Reduction::sum_square) {
      return static_cast<A>(Wide(total) + Wide(x) * Wide(x));
    }
    if constexpr (kKind == Reduction::log_sum_exp)
      return total + static_cast<A>(std::exp(static_cast<double>(x - shift)));
    return static_cast<A>(Wide(total) + Wide(x));
  }
  static A finish(A total, A shift, int64_t terms) {
    if constexpr (kKind == Reduction::mean) {
      // The mean of no integers is defined as 0, which avoids a division by zero.
      if constexpr (std::is_floating_point_v<A>)
        return total / static_cast<A>(terms);
      else
        return terms == 0 ? A(0) : static_cast<A>(total / static_cast<A>(terms));
    }
    const double t = static_cast<double>(total);
    if constexpr (kKind == Reduction::l2) return static_cast<A>(std::sqrt(t));
    if constexpr (kKind == Reduction::log_sum) return static_cast<A>(std::log(t));
    if constexpr (kKind == Reduction::log_sum_exp)
      return static_cast<A>(std::log(t) + static_cast<double>(shift));
    return total;
  }
  /// Integers are joined as unsigned values, so that they wrap around.
  static auto Wide(A x) {
    if constexpr (std::is_integral_v<A>)
      return static_cast<uint64_t>(x);
    else
      return x;
  }
};

constexpr int64_t kTile = 64;  // results accumulated together, whose totals stay in the L1 cache
constexpr int64_t kLanes = 4;  // independent totals of a long run of terms

/// Joins a run of adjacent terms in kLanes interleaved totals, which are joined in order at the end. The
/// order depends only on n.
template <Reduction kKind, class T, class A>
A join_run(const T* x, int64_t n, A total, A shift) {
  using R = Rule<kKind, A>;
  if (n < 4 * kLanes) {
    for (int64_t i = 0; i < n; ++i)
      total = R::join(total, static_cast<A>(static_cast<Arithmetic<T>>(x[i])), shift);
    return total;
  }
  A lanes[kLanes];
  for (A& lane : lanes) lane = R::start();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lanes[k] = R::join(lanes[k], static_cast<A>(static_cast<Arithmetic<T>>(x[i + k])), shift);
    }
  }
  for (; i < n; ++i) lanes[0] = R::join(lanes[0], static_cast<A>(static_cast<Arithmetic<T>>(x[i])), shift);
  using Plain =
      Rule<kKind == Reduction::max || kKind == Reduction::min || kKind == Reduction::prod ? kKind
                                                                                          : Reduction::sum,
           A>;
  for (const A& lane : lanes) total = Plain::join(total, lane, A(0));
  return total;
}

/// Computes totals of `n` adjacent results whose terms start at x; shift is 0 except for log_sum_exp.
template <Reduction kKind, class T, class A>
void join_tile(const ReduceGroups& plan, const T* x, int64_t n, A* totals, const A* shift) {
  using R = Rule<kKind, A>;
  for (int64_t j = 0; j < n; ++j) totals[j] = R::start();
  const bool has_runs = !plan.gone.empty() && plan.gone_steps.back() == 1;
  const int64_t run = has_runs ? plan.gone.back() : 1;
  if (plan.terms == 0) return;
  // Steps through all reduced dimensions except the last one, if that is a run, like an odometer.
  tensor::Dims const& extents = plan.gone;
  const size_t outer = extents.size() - (has_runs ? 1 : 0);
  std::array<int64_t, StridedLoop::kMaxRank> index{};
  int64_t offset = 0;
  while (true) {
    if (has_runs) {
      totals[0] = join_run<kKind, T, A>(x + offset, run, totals[0], shift[0]);
    } else {
      for (int64_t j = 0; j < n; ++j) {
        totals[j] = R::join(totals[j], static_cast<A>(static_cast<Arithmetic<T>>(x[offset + j])), shift[j]);
      }
    }
    size_t d = outer;
    while (d-- > 0) {
      offset += plan.gone_steps[d];
      if (++index[d] < extents[d]) break;
      offset -= plan.gone_steps[d] * extents[d];
      index[d] = 0;
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

template <Reduction kKind, class T>
void reduce_tile(const ReduceGroups& plan, const T* x, T* y, int64_t n) {
  using A = TotalOf<kKind, T>;
  if constexpr (std::is_integral_v<T> && (kKind == Reduction::max || kKind == Reduction::min)) {
    // The extreme of no integers is the other end of their own range, not of that of the totals.
    using Limits = std::numeric_limits<T>;
    if (plan.terms == 0) {
      std::fill_n(y, n, kKind == Reduction::max ? Limits::lowest() : Limits::max());
      return;
    }
  }
  A totals[kTile], shift[kTile];
  for (int64_t j = 0; j < n; ++j) shift[j] = 0;
  if constexpr (kKind == Reduction::log_sum_exp) {
    join_tile<Reduction::max, T, A>(plan, x, n, shift, shift);
    for (int64_t j = 0; j < n; ++j) {
      if (!std::isfinite(static_cast<double>(shift[j])))
        shift[j] = 0;  // no terms or infinite: no shift is needed
    }
  }
  join_tile<kKind, T, A>(plan, x, n, totals, shift);
  for (int64_t j = 0; j < n; ++j)
    y[j] = static_cast<T>(Rule<kKind, A>::finish(totals[j], shift[j], plan.terms));
}

template <Reduction kKind, class T>
ir::BoundKernel bind(const ReduceGroups& plan) {
  return {[plan](const ir::RunArgs& args) {
    const T* x = static_cast<const T*>(args.in[0]);
    T* y = static_cast<T*>(args.out[0]);
    const int64_t tile = std::min(plan.columns, kTile);
    const int64_t tiles_per_row = plan.columns == 0 ? 0 : (plan.columns + tile - 1) / tile;
    const int64_t rows = plan.columns == 0 ? 0 : plan.results / plan.columns;
    const int64_t work = std::max<int64_t>(1, plan.terms * tile);
    const int64_t grain = std::max<int64_t>(1, 32768 / work);
    cpu::pool_of(args.stream).for_range(rows * tiles_per_row, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / tiles_per_row * plan.columns + task % tiles_per_row * tile;
        const int64_t n = std::min(tile, plan.columns - task % tiles_per_row * tile);
        reduce_tile<kKind, T>(plan, x + offset_of(first, plan.kept, plan.kept_steps), y + first, n);
      }
    });
  }};
}

template <Reduction kKind>
ir::BoundKernel prepare(const ir::KernelInit& init) {
  const ReduceGroups plan = group_dims(init.node.in_dims(0), reduced_axes(init.node));
  if (plan.gone.size() >= StridedLoop::kMaxRank)
    base::fail_unsupported("a reduction over ", plan.gone.size(), " dimensions that do not merge");
  return tensor::visit_dtype(init.node.in[0].dtype,
                             [&](auto zero) { return bind<kKind, decltype(zero)>(plan); });
}

template <Reduction kKind>
ir::Kernel kernel_of() {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.present(1) && n.value(1) == nullptr) return "the axes are not known before the run";
    if (!has_arithmetic(n.in[0].dtype)) return base::concat("no reduction of ", name_of(n.in[0].dtype));
    return std::nullopt;
  };
  k.prepare = prepare<kKind>;
  return k;
}

/// Views x as [outer, axis, inner] if the reduced axes are adjacent.
std::optional<cpu::ReduceArgs> one_axis(const ir::NodeView& n) {
  const tensor::Dims dims = n.in_dims(0);
  const std::vector<bool> reduced = reduced_axes(n);
  cpu::ReduceArgs args{.x = nullptr, .y = nullptr, .outer = 1, .axis = 1, .inner = 1};
  bool has_begun = false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    if (reduced[d] && args.inner != 1) return std::nullopt;
    has_begun = has_begun || reduced[d];
    (reduced[d] ? args.axis : has_begun ? args.inner : args.outer) *= dims[d];
  }
  return args;
}

ir::Kernel vector_kernel(cpu::ReduceOp op) {
  ir::Kernel k{.name = "vector"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.present(1) && n.value(1) == nullptr) return "the axes are not known before the run";
    if (n.in[0].dtype != tensor::DType::f32) return "the vector toolkit computes f32";
    if (tensor::element_count(n.in_dims(0)) == 0) return "there is nothing to reduce";
    const auto shape = one_axis(n);
    if (!shape) return "the axes are not neighbours";
    if (shape->axis == 1) return "no axis has more than one element";
    return std::nullopt;
  };
  k.prepare = [op](const ir::KernelInit& init) -> ir::BoundKernel {
    const cpu::ReduceArgs shape = *one_axis(init.node);
    return {[op, shape](const ir::RunArgs& args) {
      cpu::ReduceArgs a = shape;
      a.x = static_cast<const float*>(args.in[0]);
      a.y = static_cast<float*>(args.out[0]);
      cpu::reduce(op, a, cpu::pool_of(args.stream));
    }};
  };
  return k;
}

}  // namespace

std::vector<ir::Kernel> reduce_cpu_kernels(Reduction reduction) {
  const auto kernels = [](cpu::ReduceOp op, ir::Kernel reference) {
    const ir::Kernel fast = vector_kernel(op);
    return std::vector<ir::Kernel>{fast, via_f32(fast), std::move(reference)};
  };
  switch (reduction) {
    case Reduction::sum: return kernels(cpu::ReduceOp::sum, kernel_of<Reduction::sum>());
    case Reduction::mean: return kernels(cpu::ReduceOp::mean, kernel_of<Reduction::mean>());
    case Reduction::max: return kernels(cpu::ReduceOp::max, kernel_of<Reduction::max>());
    case Reduction::min: return kernels(cpu::ReduceOp::min, kernel_of<Reduction::min>());
    case Reduction::prod: return kernels(cpu::ReduceOp::prod, kernel_of<Reduction::prod>());
    case Reduction::l1: return kernels(cpu::ReduceOp::l1, kernel_of<Reduction::l1>());
    case Reduction::l2: return kernels(cpu::ReduceOp::l2, kernel_of<Reduction::l2>());
    case Reduction::log_sum: return kernels(cpu::ReduceOp::log_sum, kernel_of<Reduction::log_sum>());
    case Reduction::log_sum_exp:
      return kernels(cpu::ReduceOp::log_sum_exp, kernel_of<Reduction::log_sum_exp>());
    case Reduction::sum_square: return kernels(cpu::ReduceOp::sum_square, kernel_of<Reduction::sum_square>());
  }
  return {};
}

}  // namespace trireme::ops
