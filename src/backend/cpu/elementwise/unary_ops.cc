// Elementwise functions of one tensor: the vector code of the rows of tensor/elementwise_rows.inc, compiled
// once per SIMD level.
#include "backend/cpu/elementwise/unary_ops.h"

#include <array>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#include "tensor/element_math.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/unary_ops.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/elementwise/vector_value.inc"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

namespace math = tensor::math;
using P = UnaryParams;

/// The vector code of a functor of tensor/elementwise_rows.inc; has no call operator if there is none.
template <class Functor>
struct VectorForm {};

#define FUNCTION(Functor, cost, ...) VECTOR_FUNCTION(Functor, cost, return __VA_ARGS__)
#define VECTOR_FUNCTION(Functor, cost, ...)        \
  template <>                                      \
  struct VectorForm<math::Functor> {               \
    using C = Lanes;                               \
    C a, b;                                        \
    HWY_INLINE VF operator()(VF lanes) const {     \
      const C x(lanes);                            \
      return value(x).v;                           \
    }                                              \
    HWY_INLINE C value(C x) const { __VA_ARGS__; } \
  };
#define IF(condition, p, q) choose(condition, p, q)
#include "tensor/elementwise_rows.inc"
#undef IF

template <class Functor>
void run_form(const float* x, float* y, size_t n, P p) {
  map_run(x, y, n, VectorForm<Functor>{Lanes(p.a), Lanes(p.b)});
}

template <class Functor>
constexpr UnaryTile tile_of() {
  if constexpr (std::is_invocable_v<VectorForm<Functor>, VF>)
    return &run_form<Functor>;
  else
    return nullptr;
}

void pow_scalar_tile(const float* x, float* y, size_t n, P p) {
  const float e = p.a;
  if (e == 2.0f) return map_run(x, y, n, [](VF v) HWY_ATTR { return hn::Mul(v, v); });
  if (e == 3.0f) return map_run(x, y, n, [](VF v) HWY_ATTR { return hn::Mul(v, hn::Mul(v, v)); });
  if (e == 1.0f) return map_run(x, y, n, [](VF v) HWY_ATTR { return v; });
  if (e == 0.5f) return map_run(x, y, n, [](VF v) HWY_ATTR { return hn::Sqrt(v); });
  if (e == -0.5f) return map_run(x, y, n, [](VF v) HWY_ATTR { return hn::Div(set(1.0f), hn::Sqrt(v)); });
  if (e == -1.0f) return map_run(x, y, n, [](VF v) HWY_ATTR { return hn::Div(set(1.0f), v); });
  if (e == 0.0f) return map_run(x, y, n, [](VF) HWY_ATTR { return set(1.0f); });
  for (size_t i = 0; i < n; ++i) y[i] = std::pow(x[i], e);
}

UnaryTile find(UnaryOp op) {
  static constexpr std::array<UnaryTile, static_cast<size_t>(UnaryOp::count_)> kTable = {
#define UNARY_ROW(name, Functor, ...) tile_of<math::Functor>(),
#define UNARY_ROW_ALONE(name, Functor, ...) tile_of<math::Functor>(),
#define PREDICATE_ROW(name, Functor, ...) nullptr,
#define UNARY_STEP(name, Functor) tile_of<math::Functor>(),
#include "tensor/elementwise_rows.inc"
      pow_scalar_tile,
  };
  return kTable[static_cast<size_t>(op)];
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(find);

namespace {

enum class Cost : uint8_t { none, cheap, costly };

/// The cost of a functor's vector code; Cost::none if there is no such code.
template <class Functor>
constexpr Cost kCost = Cost::none;
#define FUNCTION(Functor, cost, ...) VECTOR_FUNCTION(Functor, cost)
#define VECTOR_FUNCTION(Functor, cost, ...) \
  template <>                               \
  constexpr Cost kCost<tensor::math::Functor> = Cost::cost;
#include "tensor/elementwise_rows.inc"

struct FunctionRow {
  std::string_view name;
  Cost cost;
};
constexpr FunctionRow kRows[] = {
#define UNARY_ROW(name, Functor, ...) {#name, kCost<tensor::math::Functor>},
#define UNARY_ROW_ALONE(name, Functor, ...) {#name, kCost<tensor::math::Functor>},
#define PREDICATE_ROW(name, Functor, ...) {#name, Cost::none},
#define UNARY_STEP(name, Functor) {#name, kCost<tensor::math::Functor>},
#include "tensor/elementwise_rows.inc"
    {"pow_scalar", Cost::costly},
};
static_assert(std::size(kRows) == static_cast<size_t>(UnaryOp::count_));

}  // namespace

UnaryTile unary_tile(UnaryOp op) { return HWY_DYNAMIC_DISPATCH(find)(op); }

bool is_costly(UnaryOp op) { return kRows[static_cast<size_t>(op)].cost == Cost::costly; }

std::optional<UnaryOp> unary_op_of(std::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].name == name && kRows[i].cost != Cost::none) return UnaryOp(i);
  }
  return std::nullopt;
}

void unary(const UnaryFunction& f, const float* x, float* y, int64_t n, base::ThreadPool& pool) {
  const UnaryTile tile = unary_tile(f.op);
  // Pieces are multiples of 16 floats (one cache line) and take a few microseconds each.
  const int64_t lines = (n + 15) / 16;
  pool.for_range(lines, is_costly(f.op) ? 256 : 1024, [&](int64_t begin, int64_t end) {
    const int64_t last = end * 16 < n ? end * 16 : n;
    tile(x + begin * 16, y + begin * 16, static_cast<size_t>(last - begin * 16), f.params);
  });
}

}  // namespace trireme::cpu
#endif
