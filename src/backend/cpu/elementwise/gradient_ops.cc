// The table of derivatives of elementwise functions, compiled once per SIMD level.
#include "backend/cpu/elementwise/gradient_ops.h"

#include <array>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/gradient_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_angle.inc"
#include "backend/cpu/simd/simd_math.inc"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

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

// One derivative per row: d is dy, v the operand or result, p the parameters.
#define TRIREME_GRADIENT(name, ...)                                               \
  void name##_tile(const float* dy, const float* x, float* dx, size_t n, P p) {   \
    (void)p;                                                                      \
    gradient_run(dy, x, dx, n, [&](VF d, VF v) HWY_ATTR { return __VA_ARGS__; }); \
  }

HWY_INLINE VF zero() { return hn::Zero(kF); }
HWY_INLINE VF one() { return set(1.0f); }
HWY_INLINE VF exp_below_zero(VF v) { return exp_v(min_or_second(zero(), v)); }

HWY_INLINE VF silu(VF d, VF v, float alpha) {
  const VF u = hn::Mul(set(alpha), v);
  const VF s = sigmoid_v(u);
  return hn::Mul(d, hn::Mul(s, hn::MulAdd(u, hn::Sub(one(), s), one())));
}

// With e = exp(v), w = e (e + 2): t = w / (w + 2), 1 - t^2 = 4 (w + 1) / (w + 2)^2; beyond 20 the slope is 1.
HWY_INLINE VF mish(VF d, VF v) {
  const VF e = exp_v(min_or_second(set(20.0f), v));
  const VF w = hn::Mul(e, hn::Add(e, set(2.0f))), w2 = hn::Add(w, set(2.0f));
  const VF t = hn::Div(w, w2);
  const VF s = hn::Div(e, hn::Add(one(), e));
  const VF rest = hn::Div(hn::Mul(set(4.0f), hn::Add(w, one())), hn::Mul(w2, w2));
  return hn::Mul(d, hn::MulAdd(hn::Mul(v, s), rest, t));
}

HWY_INLINE VF hard_swish(VF d, VF v) {
  const VF inner = hn::Mul(d, hn::MulAdd(v, set(1.0f / 3.0f), set(0.5f)));
  const VF at_most = hn::IfThenElse(hn::Gt(v, set(3.0f)), d, inner);
  return hn::IfThenElse(hn::Lt(v, set(-3.0f)), zero(), at_most);
}

HWY_INLINE VF hard_sigmoid(VF d, VF v, P p) {
  const VF u = hn::Add(hn::Mul(set(p.a), v), set(p.b));
  return hn::IfThenElseZero(hn::And(hn::Gt(u, zero()), hn::Lt(u, one())), hn::Mul(set(p.a), d));
}

// Phi(v) + v phi(v) with one exponential: the tail Phi(-|v|) is phi(v) times a polynomial in 1 / (1 + p |v|),
// absolute error 7.5e-8 (Abramowitz & Stegun 26.2.17), of the order of f32's rounding of the sum.
HWY_INLINE VF gelu_erf(VF d, VF v) {
  const VF a = hn::Abs(v);
  const VF pdf = hn::Mul(set(0.39894228f), exp_nonpositive(hn::Mul(hn::Mul(set(-0.5f), v), v)));
  const VF k = hn::Div(one(), hn::MulAdd(set(0.2316419f), a, one()));
  VF s = hn::MulAdd(set(1.330274429f), k, set(-1.821255978f));
  s = hn::MulAdd(s, k, set(1.781477937f));
  s = hn::MulAdd(s, k, set(-0.356563782f));
  s = hn::MulAdd(s, k, set(0.319381530f));
  const VF tail = hn::Mul(pdf, hn::Mul(s, k));
  const VF cdf = hn::IfThenElse(hn::Lt(v, zero()), tail, hn::Sub(one(), tail));
  return hn::Mul(d, hn::MulAdd(v, pdf, cdf));
}

// The formula is v s(u), s the logistic function, u = 2 sqrt(2/pi) (v + 0.044715 v^3): s + v s (1 - s) u'.
HWY_INLINE VF gelu_tanh(VF d, VF v) {
  const VF root = set(1.59576912f), square = hn::Mul(v, v);
  const VF s = sigmoid_v(hn::Mul(root, hn::MulAdd(hn::Mul(set(0.044715f), square), v, v)));
  const VF slope = hn::Mul(root, hn::MulAdd(set(0.134145f), square, one()));
  const VF rest = hn::Mul(hn::Mul(v, slope), hn::Sub(one(), s));
  return hn::Mul(d, hn::MulAdd(s, rest, s));
}

TRIREME_GRADIENT(relu, hn::IfThenElse(hn::Le(v, zero()), zero(), d))
TRIREME_GRADIENT(leaky_relu, hn::IfThenElse(hn::Lt(v, zero()), hn::Mul(set(p.a), d), d))
TRIREME_GRADIENT(thresholded_relu, hn::IfThenElseZero(hn::Gt(v, set(p.a)), d))
TRIREME_GRADIENT(elu, hn::IfThenElse(hn::Gt(v, zero()), d, hn::Mul(hn::Mul(d, set(p.a)), exp_below_zero(v))))
TRIREME_GRADIENT(selu, hn::Mul(hn::Mul(d, set(p.b)), hn::IfThenElse(hn::Gt(v, zero()), one(),
                                                                    hn::Mul(set(p.a), exp_below_zero(v)))))
TRIREME_GRADIENT(celu, hn::IfThenElse(hn::Gt(v, zero()), d, hn::Mul(d, exp_v(hn::Div(v, set(p.a))))))
TRIREME_GRADIENT(sigmoid, hn::Mul(d, hn::Mul(v, hn::Sub(one(), v))))
TRIREME_GRADIENT(hard_sigmoid, hard_sigmoid(d, v, p))
TRIREME_GRADIENT(hard_swish, hard_swish(d, v))
TRIREME_GRADIENT(silu, silu(d, v, p.a))
TRIREME_GRADIENT(mish, mish(d, v))
TRIREME_GRADIENT(softplus, hn::Mul(d, sigmoid_v(v)))
TRIREME_GRADIENT(softsign, hn::Div(d, hn::Mul(hn::Add(one(), hn::Abs(v)), hn::Add(one(), hn::Abs(v)))))
TRIREME_GRADIENT(tanh, hn::Mul(d, hn::NegMulAdd(v, v, one())))
TRIREME_GRADIENT(exp, hn::Mul(d, v))
TRIREME_GRADIENT(log, hn::Div(d, v))
TRIREME_GRADIENT(sqrt, hn::Mul(d, hn::Div(set(0.5f), v)))
TRIREME_GRADIENT(reciprocal, hn::Neg(hn::Mul(d, hn::Mul(v, v))))
TRIREME_GRADIENT(erf, hn::Mul(hn::Mul(d, set(1.12837917f)), exp_v(hn::Neg(hn::Mul(v, v)))))
TRIREME_GRADIENT(gelu_erf, gelu_erf(d, v))
TRIREME_GRADIENT(gelu_tanh, gelu_tanh(d, v))
TRIREME_GRADIENT(sin, hn::Mul(d, cos_any(v)))
TRIREME_GRADIENT(cos, hn::Neg(hn::Mul(d, sin_any(v))))
TRIREME_GRADIENT(abs, hn::IfThenElse(hn::Gt(v, zero()), d, hn::IfThenElseZero(hn::Lt(v, zero()), hn::Neg(d))))
TRIREME_GRADIENT(clip, hn::IfThenElseZero(hn::And(hn::Ge(v, set(p.a)), hn::Le(v, set(p.b))), d))
TRIREME_GRADIENT(shrink, hn::IfThenElseZero(hn::Or(hn::Lt(v, set(-p.b)), hn::Gt(v, set(p.b))), d))

GradientTile find_gradient(GradientOp op) {
  static constexpr std::array<GradientTile, static_cast<size_t>(GradientOp::count_)> kTable = {
#define UNARY_FUNCTION(name, op, cost)
#define GRADIENT_FUNCTION(name, op, cost) name##_tile,
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

HWY_EXPORT(find_gradient);

namespace {

enum class Cost : uint8_t { cheap, costly };

struct FunctionRow {
  std::string_view op;
  Cost cost;
};
constexpr FunctionRow kRows[] = {
#define UNARY_FUNCTION(name, op, cost)
#define GRADIENT_FUNCTION(name, op, cost) {op, Cost::cost},
#include "backend/cpu/elementwise/vector_functions.inc"
#undef UNARY_FUNCTION
#undef GRADIENT_FUNCTION
};

const FunctionRow& row_of(GradientOp op) { return kRows[static_cast<size_t>(op)]; }

}  // namespace

GradientTile gradient_tile(GradientOp op) { return HWY_DYNAMIC_DISPATCH(find_gradient)(op); }

bool is_costly(GradientOp op) { return row_of(op).cost == Cost::costly; }

std::optional<GradientOp> gradient_op_of(std::string_view name) {
  for (size_t i = 0; !name.empty() && i < static_cast<size_t>(GradientOp::count_); ++i) {
    if (row_of(GradientOp(i)).op == name) return GradientOp(i);
  }
  return std::nullopt;
}

void gradient(const GradientFunction& f, const GradientArgs& g, base::ThreadPool& pool) {
  const GradientTile tile = gradient_tile(f.op);
  // Pieces are cut at multiples of 16 floats (one cache line) and cost a few microseconds each.
  pool.for_range((g.n + 15) / 16, is_costly(f.op) ? 256 : 1024, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * 16, last = end * 16 < g.n ? end * 16 : g.n;
    tile(g.dy + first, g.v + first, g.dx + first, static_cast<size_t>(last - first), f.params);
  });
}

}  // namespace trireme::cpu
#endif
