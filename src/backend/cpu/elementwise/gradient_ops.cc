// Derivatives of elementwise functions: the vector code of the rows of tensor/elementwise_rows.inc, compiled
// once per SIMD level.
#include "backend/cpu/elementwise/gradient_ops.h"

#include <array>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#include "tensor/derivative_math.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/gradient_ops.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/elementwise/vector_value.inc"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

namespace math = tensor::math;
using P = UnaryParams;

template <class F>
HWY_INLINE void gradient_run(const float* dy, const float* v, float* dx, size_t n, const F& f) {
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF a = f(hn::LoadU(kF, dy + i), hn::LoadU(kF, v + i));
    const VF b = f(hn::LoadU(kF, dy + i + kLanes), hn::LoadU(kF, v + i + kLanes));
    hn::StoreU(a, kF, dx + i);
    hn::StoreU(b, kF, dx + i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(f(hn::LoadU(kF, dy + i), hn::LoadU(kF, v + i)), kF, dx + i);
  }
  if (i < n) store_n(f(load_n(dy + i, n - i), load_n(v + i, n - i, 1.0f)), dx + i, n - i);
}

/// The vector code of a derivative of tensor/elementwise_rows.inc; has no call operator if there is none.
template <class Functor>
struct VectorForm {};

#define DERIVATIVE(Functor, cost, ...) VECTOR_DERIVATIVE(Functor, cost, return __VA_ARGS__)
#define VECTOR_DERIVATIVE(Functor, cost, ...)                                                            \
  template <>                                                                                            \
  struct VectorForm<math::Functor##Grad> {                                                               \
    using C = Lanes;                                                                                     \
    C a, b;                                                                                              \
    HWY_INLINE VF operator()(VF dy_lanes, VF v_lanes) const { return value(C(dy_lanes), C(v_lanes)).v; } \
    HWY_INLINE C value(C d, C v) const { __VA_ARGS__; }                                                  \
  };
#define IF(condition, p, q) choose(condition, p, q)
#include "tensor/elementwise_rows.inc"
#undef IF

template <class Functor>
void run_form(const float* dy, const float* v, float* dx, size_t n, P p) {
  gradient_run(dy, v, dx, n, VectorForm<Functor>{Lanes(p.a), Lanes(p.b)});
}

template <class Functor>
constexpr GradientTile tile_of() {
  if constexpr (std::is_invocable_v<VectorForm<Functor>, VF, VF>)
    return &run_form<Functor>;
  else
    return nullptr;
}

GradientTile find_gradient(GradientOp op) {
  static constexpr std::array<GradientTile, static_cast<size_t>(GradientOp::count_)> kTable = {
#define UNARY_ROW(name, Functor, ...) tile_of<math::Functor##Grad>(),
#define UNARY_STEP(name, Functor) tile_of<math::Functor##Grad>(),
#include "tensor/elementwise_rows.inc"
  };
  return kTable[static_cast<size_t>(op)];
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(find_gradient);

namespace {

enum class Cost : uint8_t { none, cheap, costly };

/// The cost of a derivative's vector code; Cost::none if there is no such code.
template <class Functor>
constexpr Cost kCost = Cost::none;
#define DERIVATIVE(Functor, cost, ...) VECTOR_DERIVATIVE(Functor, cost)
#define VECTOR_DERIVATIVE(Functor, cost, ...) \
  template <>                                 \
  constexpr Cost kCost<tensor::math::Functor##Grad> = Cost::cost;
#include "tensor/elementwise_rows.inc"

struct FunctionRow {
  std::string_view name;
  Cost cost;
};
constexpr FunctionRow kRows[] = {
#define UNARY_ROW(name, Functor, ...) {#name "_grad", kCost<tensor::math::Functor##Grad>},
#define UNARY_STEP(name, Functor) {#name "_grad", kCost<tensor::math::Functor##Grad>},
#include "tensor/elementwise_rows.inc"
};

}  // namespace

GradientTile gradient_tile(GradientOp op) { return HWY_DYNAMIC_DISPATCH(find_gradient)(op); }

bool is_costly(GradientOp op) { return kRows[static_cast<size_t>(op)].cost == Cost::costly; }

std::optional<GradientOp> gradient_op_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].name == name && kRows[i].cost != Cost::none) return GradientOp(i);
  }
  return std::nullopt;
}

void gradient(const GradientFunction& f, const GradientArgs& g, base::ThreadPool& pool) {
  const GradientTile tile = gradient_tile(f.op);
  // Pieces are multiples of 16 floats (one cache line) and take a few microseconds each.
  pool.for_range((g.n + 15) / 16, is_costly(f.op) ? 256 : 1024, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 16, last = end * 16 < g.n ? end * 16 : g.n;
    tile(g.dy + first, g.v + first, g.dx + first, static_cast<size_t>(last - first), f.params);
  });
}

}  // namespace trireme::cpu
#endif
