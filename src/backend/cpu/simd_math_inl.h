// Elementary functions and fixed-order lane reductions for one SIMD level; included once per level by kernel
// files.
#if defined(TRIREME_SIMD_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIREME_SIMD_MATH_INL
#undef TRIREME_SIMD_MATH_INL
#else
#define TRIREME_SIMD_MATH_INL
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backend/cpu/simd_targets.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::ScalableTag<int32_t>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using MF = hn::Mask<F32>;
constexpr F32 kF;
constexpr I32 kI;
constexpr size_t kLanes = HWY_LANES(float);

HWY_INLINE VF set(float v) { return hn::Set(kF, v); }

/// Loads n < kLanes floats, the other lanes hold `fill`; never touches memory beyond p[n).
HWY_INLINE VF load_n(const float* HWY_RESTRICT p, size_t n, float fill = 0.0f) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const MF mask = hn::FirstN(kF, n);
  const VF v = hn::MaskedLoad(mask, kF, p);
  return fill == 0.0f ? v : hn::IfThenElse(mask, v, set(fill));
#else
  HWY_ALIGN float lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return hn::Load(kF, lanes);
#endif
}

/// Stores the first n < kLanes lanes and nothing else.
HWY_INLINE void store_n(VF v, float* HWY_RESTRICT p, size_t n) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(kF, n), kF, p);
#else
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, kF, lanes);
  std::memcpy(p, lanes, n * sizeof(float));
#endif
}

// As x86 has it at every level: b where either operand is NaN. Keep the value whose NaN matters second.
template <class V>
HWY_INLINE V max_or_second(V a, V b) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Gt(a, b), a, b);
#else
  return hn::Max(a, b);
#endif
}
template <class V>
HWY_INLINE V min_or_second(V a, V b) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(a, b), a, b);
#else
  return hn::Min(a, b);
#endif
}

HWY_INLINE VF clamp_keep_nan(VF x, float lo, float hi) {
  return min_or_second(set(hi), max_or_second(set(lo), x));
}

/// Splits x into n * ln2 + r with |r| <= ln2/2: returns r, and n + 1.5*2^23 whose low bits are the integer n.
HWY_INLINE VF reduce_ln2(VF x, VF* shifted) {
  const VF magic = set(12582912.0f);
  *shifted = hn::MulAdd(x, set(1.44269504f), magic);
  const VF n = hn::Sub(*shifted, magic);
  // ln2 in two parts; the first has 9 trailing zero bits, so n * part is exact.
  return hn::NegMulAdd(n, set(-2.12194440e-4f), hn::NegMulAdd(n, set(0.693359375f), x));
}

/// exp(r) - 1 for |r| <= ln2/2, relative error 3e-9 before rounding.
HWY_INLINE VF expm1_poly(VF r) {
  VF p = hn::MulAdd(set(0.0013814309f), r, set(0.008368856f));
  p = hn::MulAdd(p, r, set(0.0416684f));
  p = hn::MulAdd(p, r, set(0.1666652f));
  p = hn::MulAdd(p, r, set(0.49999994f));
  return hn::MulAdd(hn::Mul(r, r), p, r);
}

/// 2^n from the shifted form of reduce_ln2; n in [-126, 127].
HWY_INLINE VF pow2_of(VF shifted) {
  const VI bits = hn::ShiftLeft<23>(hn::BitCast(kI, shifted));
  return hn::BitCast(kF, hn::Add(bits, hn::Set(kI, 0x3F800000)));
}

/// exp(x), 1 ulp, for x <= 0 as softmax has it: below -87.3 (and -inf) the result is exactly 0. NaN stays
/// NaN.
HWY_INLINE VF exp_nonpositive(VF x) {
  VF shifted;
  const VF r = reduce_ln2(max_or_second(set(-87.33f), x), &shifted);
  const VF scale = pow2_of(shifted);
  const VF y = hn::MulAdd(expm1_poly(r), scale, scale);
  return hn::IfThenElse(hn::Lt(x, set(-87.33f)), hn::Zero(kF), y);
}

/// exp(x) over the whole range, 1 ulp, subnormal results included. 14 flop.
HWY_INLINE VF exp_v(VF x) {
  VF shifted;
  const VF r = reduce_ln2(clamp_keep_nan(x, -104.0f, 89.0f), &shifted);
  // 2^n = 2^(n/2) * 2^(n - n/2): both factors stay normal for n in [-150, 128].
  const VI n = hn::Sub(hn::BitCast(kI, shifted), hn::Set(kI, 0x4B400000));
  const VI half = hn::ShiftRight<1>(n);
  const VI bias = hn::Set(kI, 127);
  const VF a = hn::BitCast(kF, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const VF b = hn::BitCast(kF, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return hn::Mul(hn::MulAdd(expm1_poly(r), a, a), b);
}

/// exp(x) - 1 without cancellation near 0, 1-2 ulp; inf above 88.7.
HWY_INLINE VF expm1_v(VF x) {
  VF shifted;
  const VF r = reduce_ln2(clamp_keep_nan(x, -30.0f, 88.0f), &shifted);
  const VF scale = pow2_of(shifted);
  const VF y = hn::MulAdd(expm1_poly(r), scale, hn::Sub(scale, set(1.0f)));
  return hn::IfThenElse(hn::Gt(x, set(88.0f)), exp_v(x), y);
}

/// Natural logarithm, 1-2 ulp; log(0) = -inf, negative -> NaN, subnormals exact.
HWY_INLINE VF log_v(VF x) {
  const MF tiny = hn::Lt(x, set(1.17549435e-38f));
  const VF scaled = hn::IfThenElse(tiny, hn::Mul(x, set(8388608.0f)), x);
  const VI bits = hn::BitCast(kI, scaled);
  // Mantissa in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) first rounds the exponent the right
  // way.
  const VI offset = hn::Sub(bits, hn::Set(kI, 0x3F3504F3));
  const VI exponent = hn::ShiftRight<23>(offset);
  const VF m = hn::BitCast(kF, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
  VF n = hn::ConvertTo(kF, exponent);
  n = hn::Sub(n, hn::IfThenElseZero(tiny, set(23.0f)));
  const VF f = hn::Sub(m, set(1.0f));
  VF p = hn::MulAdd(set(-0.07634500414133072f), f, set(0.127615824341774f));
  p = hn::MulAdd(p, f, set(-0.13160182535648346f));
  p = hn::MulAdd(p, f, set(0.14201757311820984f));
  p = hn::MulAdd(p, f, set(-0.16623356938362122f));
  p = hn::MulAdd(p, f, set(0.20001226663589478f));
  p = hn::MulAdd(p, f, set(-0.2500081956386566f));
  p = hn::MulAdd(p, f, set(0.3333333134651184f));
  const VF f2 = hn::Mul(f, f);
  VF y = hn::MulAdd(hn::Mul(f2, f), p, hn::Mul(n, set(-2.12194440e-4f)));
  y = hn::MulAdd(f2, set(-0.5f), y);
  y = hn::MulAdd(n, set(0.693359375f), hn::Add(y, f));
  const float inf = std::numeric_limits<float>::infinity();
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(kF)), set(-inf), y);
  // +inf and NaN map to themselves; x < 0 is NaN.
  y = hn::IfThenElse(hn::Lt(x, set(inf)), y, x);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(kF)), set(std::numeric_limits<float>::quiet_NaN()), y);
}

/// log(1 + x) for x >= 0: the rounding of 1 + x is corrected to first order.
HWY_INLINE VF log1p_nonnegative(VF x) {
  const VF u = hn::Add(x, set(1.0f));
  const VF lost = hn::Sub(x, hn::Sub(u, set(1.0f)));
  return hn::Add(log_v(u), hn::Div(lost, u));
}

/// tanh(x) = e / (e + 2) with e = exp(2x) - 1; 2 ulp over the whole range.
HWY_INLINE VF tanh_v(VF x) {
  const VF e = expm1_v(hn::Mul(set(2.0f), clamp_keep_nan(hn::Abs(x), 0.0f, 10.0f)));
  return hn::CopySign(hn::Div(e, hn::Add(e, set(2.0f))), x);
}

/// 1 / (1 + exp(-x)), 2 ulp.
HWY_INLINE VF sigmoid_v(VF x) { return hn::Div(set(1.0f), hn::Add(set(1.0f), exp_v(hn::Neg(x)))); }

/// erf(x) = 1 - exp(-|x| S(|x|)) with the sign of x, S a minimax polynomial; relative error 2e-7. 26 flop.
HWY_INLINE VF erf_v(VF x) {
  const VF a = clamp_keep_nan(hn::Abs(x), 0.0f, 3.95f);
  VF s = hn::MulAdd(set(-9.255553777620662e-06f), a, set(0.0001176346413558349f));
  s = hn::MulAdd(s, a, set(-0.0006328120362013578f));
  s = hn::MulAdd(s, a, set(0.001666979631409049f));
  s = hn::MulAdd(s, a, set(-0.00016034493455663323f));
  s = hn::MulAdd(s, a, set(-0.019153093919157982f));
  s = hn::MulAdd(s, a, set(0.10277783870697021f));
  s = hn::MulAdd(s, a, set(0.6366193890571594f));
  s = hn::MulAdd(s, a, set(1.128379225730896f));
  VF shifted;
  const VF r = reduce_ln2(hn::Neg(hn::Mul(a, s)), &shifted);
  const VF scale = pow2_of(shifted);
  const VF expm1 = hn::MulAdd(expm1_poly(r), scale, hn::Sub(scale, set(1.0f)));
  return hn::CopySign(expm1, x);
}

// Lanes are folded half onto half (i with i + n/2) down to one: the same order at every level.
template <class Fold>
HWY_INLINE float fold_lanes(VF v, [[maybe_unused]] const Fold& fold) {
#if HWY_TARGET == HWY_AVX3
  const hn::Half<F32> half;
  const hn::Half<hn::Half<F32>> quarter;
  const auto h = fold(hn::LowerHalf(half, v), hn::UpperHalf(half, v));
  const auto q = fold(hn::LowerHalf(quarter, h), hn::UpperHalf(quarter, h));
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<F32> quarter;
  const auto q = fold(hn::LowerHalf(quarter, v), hn::UpperHalf(quarter, v));
#else
  const auto q = v;
#endif
#if HWY_TARGET == HWY_SCALAR
  return hn::GetLane(q);
#else
  const auto p = fold(q, hn::Shuffle1032(q));
  return hn::GetLane(fold(p, hn::Shuffle2301(p)));
#endif
}

// A row reduction keeps 64 running values whatever the level: 64 / kLanes vectors.
constexpr size_t kRunning = 64;
constexpr size_t kAccs = kRunning / kLanes;

struct AddFold {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct MulFold {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
};
// b first: a NaN in either operand must survive; the unordered test picks it up.
struct MaxFold {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Eq(a, a), max_or_second(a, b), a);
  }
};
struct MinFold {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Eq(a, a), min_or_second(a, b), a);
  }
};

/// Folds the 64 running values in the order i with i + 32, 16, 8, 4, 2, 1.
template <class Fold>
HWY_INLINE float fold_running(VF (&acc)[kAccs], const Fold& fold) {
  for (size_t half = kAccs / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) acc[i] = fold(acc[i], acc[i + half]);
  }
  return fold_lanes(acc[0], fold);
}

/// Folds map(x[0..n)) with 64 running values; `map(v, i)` gets the vector and its offset in x. n = 0 gives
/// `start`.
template <class Map, class Fold>
HWY_INLINE float reduce_run(const float* HWY_RESTRICT x, size_t n, float start, const Map& map,
                            const Fold& fold) {
  VF acc[kAccs];
  for (size_t k = 0; k < kAccs; ++k) acc[k] = set(start);
  size_t i = 0;
  for (; i + kRunning <= n; i += kRunning) {
    for (size_t k = 0; k < kAccs; ++k) {
      acc[k] = fold(acc[k], map(hn::LoadU(kF, x + i + k * kLanes), i + k * kLanes));
    }
  }
  for (size_t k = 0; k < kAccs && i < n; ++k, i += kLanes) {
    if (n - i >= kLanes) {
      acc[k] = fold(acc[k], map(hn::LoadU(kF, x + i), i));
    } else {
      const VF v = fold(acc[k], map(load_n(x + i, n - i), i));
      acc[k] = hn::IfThenElse(hn::FirstN(kF, n - i), v, acc[k]);
    }
  }
  return fold_running(acc, fold);
}

struct Same {
  template <class V>
  HWY_INLINE V operator()(V v, size_t) const {
    return v;
  }
};

/// Calls f(load, store) shapes over [0, n): `f(v) -> v` on each vector of x into y; whole vectors, then a
/// masked tail.
template <class F>
HWY_INLINE void map_run(const float* x, float* y, size_t n, const F& f) {
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF a = f(hn::LoadU(kF, x + i));
    const VF b = f(hn::LoadU(kF, x + i + kLanes));
    hn::StoreU(a, kF, y + i);
    hn::StoreU(b, kF, y + i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(kF, x + i)), kF, y + i);
  if (i < n) store_n(f(load_n(x + i, n - i)), y + i, n - i);
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
