// The table of elementwise functions of one tensor, compiled once per SIMD level.
#include "backend/cpu/elementwise/unary_ops.h"

#include <array>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/unary_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_angle.inc"
#include "backend/cpu/simd/simd_math.inc"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

using P = UnaryParams;

// One function object per row: parameters in, a vector function out.
#define TRIREME_UNARY(name, ...)                                  \
  void name##_tile(const float* x, float* y, size_t n, P p) {     \
    (void)p;                                                      \
    map_run(x, y, n, [&](VF v) HWY_ATTR { return __VA_ARGS__; }); \
  }
// Rare functions call the C library lane by lane: exact to its accuracy, and the same bits at every level.
#define TRIREME_UNARY_LIBRARY(name, expression)               \
  void name##_tile(const float* x, float* y, size_t n, P p) { \
    (void)p;                                                  \
    for (size_t i = 0; i < n; ++i) {                          \
      const float v = x[i];                                   \
      y[i] = expression;                                      \
    }                                                         \
  }

HWY_INLINE VF zero() { return hn::Zero(kF); }
HWY_INLINE VF one() { return set(1.0f); }

// max(x, 0) and min(x, 0) with x second: NaN stays NaN.
HWY_INLINE VF above_zero(VF v) { return max_or_second(zero(), v); }
HWY_INLINE VF below_zero(VF v) { return min_or_second(zero(), v); }

HWY_INLINE VF elu(VF v, float alpha) {
  return hn::IfThenElse(hn::Gt(v, zero()), v, hn::Mul(set(alpha), expm1_v(below_zero(v))));
}

HWY_INLINE VF softplus(VF v) { return hn::Add(above_zero(v), log1p_nonnegative(exp_v(hn::Neg(hn::Abs(v))))); }

// With e = exp(x): tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2); beyond 20 the ratio is 1.
HWY_INLINE VF mish(VF v) {
  const VF e = exp_v(min_or_second(set(20.0f), v));
  const VF w = hn::Mul(e, hn::Add(e, set(2.0f)));
  return hn::Mul(v, hn::Div(w, hn::Add(w, set(2.0f))));
}

HWY_INLINE VF gelu_erf(VF v) {
  const VF half = hn::Mul(set(0.5f), v);
  return hn::MulAdd(half, erf_v(hn::Mul(v, set(0.70710678f))), half);
}

HWY_INLINE VF gelu_tanh(VF v) {
  const VF inner = hn::Mul(set(0.79788456f), hn::MulAdd(hn::Mul(set(0.044715f), hn::Mul(v, v)), v, v));
  const VF half = hn::Mul(set(0.5f), v);
  return hn::MulAdd(half, tanh_v(inner), half);
}

HWY_INLINE VF sign(VF v) {
  const VF s = hn::IfThenElseZero(hn::Gt(v, zero()), one());
  return hn::IfThenElse(hn::Lt(v, zero()), set(-1.0f), hn::IfThenElse(hn::Eq(v, v), s, v));
}

HWY_INLINE VF shrink(VF v, P p) {
  const VF low = hn::IfThenElseZero(hn::Lt(v, set(-p.b)), hn::Add(v, set(p.a)));
  const VF r = hn::IfThenElse(hn::Gt(v, set(p.b)), hn::Sub(v, set(p.a)), low);
  return hn::IfThenElse(hn::Eq(v, v), r, v);
}

// log(1 + x) for x > -1: the rounding of 1 + x corrected to first order, infinities as log has them.
HWY_INLINE VF log1p_any(VF v) {
  const VF u = hn::Add(v, one());
  const VF lost = hn::Sub(v, hn::Sub(u, one()));
  const VF y = hn::Add(log_v(u), hn::Div(lost, u));
  const MF plain = hn::And(hn::Gt(u, zero()), hn::Lt(u, set(std::numeric_limits<float>::infinity())));
  return hn::IfThenElse(plain, y, log_v(u));
}

TRIREME_UNARY(identity, v)
TRIREME_UNARY(relu, above_zero(v))
TRIREME_UNARY(leaky_relu, hn::IfThenElse(hn::Lt(v, zero()), hn::Mul(set(p.a), v), v))
TRIREME_UNARY(thresholded_relu, hn::IfThenElseZero(hn::Gt(v, set(p.a)), v))
TRIREME_UNARY(elu, elu(v, p.a))
TRIREME_UNARY(selu, hn::Mul(set(p.b), elu(v, p.a)))
TRIREME_UNARY(celu, hn::IfThenElse(hn::Gt(v, zero()), v,
                                   hn::Mul(set(p.a), expm1_v(hn::Div(below_zero(v), set(p.a))))))
TRIREME_UNARY(sigmoid, sigmoid_v(v))
TRIREME_UNARY(hard_sigmoid, clamp_keep_nan(hn::Add(hn::Mul(set(p.a), v), set(p.b)), 0.0f, 1.0f))
TRIREME_UNARY(hard_swish, hn::Mul(v, clamp_keep_nan(hn::MulAdd(v, set(1.0f / 6.0f), set(0.5f)), 0.0f, 1.0f)))
TRIREME_UNARY(silu, hn::Mul(v, sigmoid_v(hn::Mul(set(p.a), v))))
TRIREME_UNARY(mish, mish(v))
TRIREME_UNARY(softplus, softplus(v))
TRIREME_UNARY(softsign, hn::Div(v, hn::Add(one(), hn::Abs(v))))
TRIREME_UNARY(tanh, tanh_v(v))
TRIREME_UNARY(exp, exp_v(v))
TRIREME_UNARY(expm1, expm1_v(v))
TRIREME_UNARY(log, log_v(v))
TRIREME_UNARY(log1p, log1p_any(v))
TRIREME_UNARY(sqrt, hn::Sqrt(v))
TRIREME_UNARY(rsqrt, hn::Div(one(), hn::Sqrt(v)))
TRIREME_UNARY(reciprocal, hn::Div(one(), v))
TRIREME_UNARY(square, hn::Mul(v, v))
TRIREME_UNARY(erf, erf_v(v))
TRIREME_UNARY(gelu_erf, gelu_erf(v))
TRIREME_UNARY(gelu_tanh, gelu_tanh(v))
TRIREME_UNARY(sin, sin_any(v))
TRIREME_UNARY(cos, cos_any(v))
TRIREME_UNARY_LIBRARY(tan, std::tan(v))
TRIREME_UNARY_LIBRARY(asin, std::asin(v))
TRIREME_UNARY_LIBRARY(acos, std::acos(v))
TRIREME_UNARY_LIBRARY(atan, std::atan(v))
TRIREME_UNARY_LIBRARY(sinh, std::sinh(v))
TRIREME_UNARY_LIBRARY(cosh, std::cosh(v))
TRIREME_UNARY_LIBRARY(asinh, std::asinh(v))
TRIREME_UNARY_LIBRARY(acosh, std::acosh(v))
TRIREME_UNARY_LIBRARY(atanh, std::atanh(v))
TRIREME_UNARY(abs, hn::Abs(v))
TRIREME_UNARY(neg, hn::Neg(v))
TRIREME_UNARY(floor, hn::Floor(v))
TRIREME_UNARY(ceil, hn::Ceil(v))
TRIREME_UNARY(round, hn::Round(v))
TRIREME_UNARY(trunc, hn::Trunc(v))
TRIREME_UNARY(sign, sign(v))
TRIREME_UNARY(clip, clamp_keep_nan(v, p.a, p.b))
TRIREME_UNARY(shrink, shrink(v, p))
TRIREME_UNARY(affine, hn::MulAdd(v, set(p.a), set(p.b)))
TRIREME_UNARY(logical_not, hn::IfThenElseZero(hn::Eq(v, zero()), one()))
TRIREME_UNARY(is_nan, hn::IfThenElse(hn::Eq(v, v), zero(), one()))
TRIREME_UNARY(is_inf,
              hn::IfThenElseZero(hn::Eq(hn::Abs(v), set(std::numeric_limits<float>::infinity())), one()))

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
#define UNARY_FUNCTION(name, op, cost) name##_tile,
#define GRADIENT_FUNCTION(name, op, cost)
#include "backend/cpu/elementwise/vector_functions.inc"
#undef UNARY_FUNCTION
#undef GRADIENT_FUNCTION
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

enum class Cost : uint8_t { cheap, costly };

struct FunctionRow {
  std::string_view op;
  Cost cost;
};
constexpr FunctionRow kRows[] = {
#define UNARY_FUNCTION(name, op, cost) {op, Cost::cost},
#define GRADIENT_FUNCTION(name, op, cost)
#include "backend/cpu/elementwise/vector_functions.inc"
#undef UNARY_FUNCTION
#undef GRADIENT_FUNCTION
};

const FunctionRow& row_of(UnaryOp op) { return kRows[static_cast<size_t>(op)]; }

}  // namespace

UnaryTile unary_tile(UnaryOp op) { return HWY_DYNAMIC_DISPATCH(find)(op); }

bool is_costly(UnaryOp op) { return row_of(op).cost == Cost::costly; }

std::optional<UnaryOp> unary_op_of(std::string_view name) {
  for (size_t i = 0; !name.empty() && i < static_cast<size_t>(UnaryOp::count_); ++i) {
    if (row_of(UnaryOp(i)).op == name) return UnaryOp(i);
  }
  return std::nullopt;
}

void unary(const UnaryFunction& f, const float* x, float* y, int64_t n, base::ThreadPool& pool) {
  const UnaryTile tile = unary_tile(f.op);
  // Pieces are cut at multiples of 16 floats (one cache line) and cost a few microseconds each.
  const int64_t lines = (n + 15) / 16;
  pool.for_range(lines, is_costly(f.op) ? 256 : 1024, [&](int64_t begin, int64_t end) {
    const int64_t last = end * 16 < n ? end * 16 : n;
    tile(x + begin * 16, y + begin * 16, static_cast<size_t>(last - begin * 16), f.params);
  });
}

}  // namespace trireme::cpu
#endif
