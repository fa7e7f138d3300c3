// Optimizer arithmetic in vectors: loads, the formula of a rule, stores. Reductions add in f64 in a fixed
// order.
#include "backend/cpu/optim/update_rules.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optim/update_rules.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T>>;
template <class T>
constexpr size_t kWidth = HWY_LANES(T);

template <class T>
HWY_INLINE Vec<T> all(double v) {
  return hn::Set(Tag<T>(), static_cast<T>(v));
}
// Rounds twice, so the bits equal those of a scalar loop without fused multiply-adds.
template <class V>
HWY_INLINE V mul_add(V a, V b, V c) {
  return hn::Add(hn::Mul(a, b), c);
}

/// The vectors that one step of a rule reads and writes.
template <class T>
struct Lanes {
  Vec<T> p, g, s0, s1;
};

/// Applies the rule to one vector of a run: loads what the run has, computes, and stores what the run asks
/// for. Null addresses are neither read nor written.
template <class T, class Rule>
HWY_INLINE void step_at(const Rule& rule, const UpdateRun<T>& r, size_t i) {
  const Tag<T> d;
  const auto load = [&](const T* x) HWY_ATTR { return x == nullptr ? hn::Zero(d) : hn::LoadU(d, x + i); };
  Lanes<T> v{load(r.param), load(r.grad), load(r.state[0]), load(r.state[1])};
  rule(v);
  if (r.param_out != nullptr) hn::StoreU(v.p, d, r.param_out + i);
  if (r.state_out[0] != nullptr) hn::StoreU(v.s0, d, r.state_out[0] + i);
  if (r.state_out[1] != nullptr) hn::StoreU(v.s1, d, r.state_out[1] + i);
}

/// Processes the last n < width elements in zero-padded copies, so nothing past the run is read or written.
template <class T, class Rule>
void step_tail(const Rule& rule, const UpdateRun<T>& r, size_t at) {
  const size_t n = static_cast<size_t>(r.n) - at;
  T in[4][kWidth<T>] = {}, out[3][kWidth<T>];
  const auto copy = [&](const T* x, T* to) -> const T* {
    if (x == nullptr) return nullptr;
    std::memcpy(to, x + at, n * sizeof(T));
    return to;
  };
  const UpdateRun<T> padded{
      copy(r.param, in[0]),
      copy(r.grad, in[1]),
      {copy(r.state[0], in[2]), copy(r.state[1], in[3])},
      r.param_out == nullptr ? nullptr : out[0],
      {r.state_out[0] == nullptr ? nullptr : out[1], r.state_out[1] == nullptr ? nullptr : out[2]},
      static_cast<int64_t>(kWidth<T>)};
  step_at<T>(rule, padded, 0);
  const auto back = [&](const T* from, T* x) {
    if (x != nullptr) std::memcpy(x + at, from, n * sizeof(T));
  };
  back(out[0], r.param_out);
  back(out[1], r.state_out[0]);
  back(out[2], r.state_out[1]);
}

/// Applies a rule to a run: whole vectors, then the tail.
template <class T, class Rule>
HWY_INLINE void step_run(const Rule& rule, const UpdateRun<T>& r) {
  const size_t n = static_cast<size_t>(r.n);
  size_t i = 0;
  for (; i + kWidth<T> <= n; i += kWidth<T>) step_at<T>(rule, r, i);
  if (i < n) step_tail<T>(rule, r, i);
}

// kKind: 0 plain, 1 momentum, 2 Nesterov.
template <class T, int kKind>
HWY_INLINE void sgd_kind(const SgdRule& rule, const UpdateRun<T>& run) {
  const Vec<T> scale = all<T>(rule.grad_scale), l2 = all<T>(rule.l2), mu = all<T>(rule.momentum);
  const Vec<T> keep = all<T>(rule.keep), lr = all<T>(rule.lr);
  const bool has_l2 = rule.l2 != 0, first = rule.first;
  step_run<T>(
      [=](Lanes<T>& v) HWY_ATTR {
        Vec<T> g = hn::Mul(v.g, scale);
        if (has_l2) g = hn::Add(g, hn::Mul(l2, v.p));
        if (kKind > 0) {
          v.s0 = first ? g : hn::Add(hn::Mul(mu, v.s0), hn::Mul(keep, g));
          g = kKind == 2 ? hn::Add(g, hn::Mul(mu, v.s0)) : v.s0;
        }
        v.p = hn::Sub(v.p, hn::Mul(lr, g));
      },
      run);
}

template <class T>
HWY_INLINE void sgd_any(const SgdRule& rule, const UpdateRun<T>& run) {
  if (rule.momentum == 0) return sgd_kind<T, 0>(rule, run);
  if (rule.nesterov) return sgd_kind<T, 2>(rule, run);
  sgd_kind<T, 1>(rule, run);
}

/// Constants stay in registers; memory access hides the one square root and one division per vector.
template <class T>
HWY_INLINE void adam_any(const AdamRule& rule, const UpdateRun<T>& run) {
  const Vec<T> scale = all<T>(rule.grad_scale), l2 = all<T>(rule.l2), decay = all<T>(rule.decay);
  const Vec<T> b1 = all<T>(rule.beta1), t1 = all<T>(1 - rule.beta1);
  const Vec<T> b2 = all<T>(rule.beta2), t2 = all<T>(1 - rule.beta2);
  const Vec<T> eps = all<T>(rule.eps), rate = all<T>(rule.rate), root = all<T>(rule.root);
  const bool has_l2 = rule.l2 != 0;
  step_run<T>(
      [=](Lanes<T>& v) HWY_ATTR {
        Vec<T> g = hn::Mul(v.g, scale);
        if (has_l2) g = hn::Add(g, hn::Mul(l2, v.p));
        v.s0 = hn::Add(hn::Mul(b1, v.s0), hn::Mul(t1, g));
        v.s1 = hn::Add(hn::Mul(b2, v.s1), hn::Mul(hn::Mul(t2, g), g));
        const Vec<T> u = hn::Div(v.s0, mul_add(hn::Sqrt(v.s1), root, eps));
        v.p = hn::Sub(hn::Mul(v.p, decay), hn::Mul(rate, u));
      },
      run);
}

/// The update direction u of LAMB (You et al. 2020) from moments and parameter.
template <class T>
struct LambDirection {
  Vec<T> inverse, root, eps, weight_decay;
  explicit LambDirection(const LambRule& r)
      : inverse(all<T>(r.inverse)),
        root(all<T>(r.root)),
        eps(all<T>(r.eps)),
        weight_decay(all<T>(r.weight_decay)) {}
  HWY_INLINE Vec<T> operator()(Vec<T> p, Vec<T> m, Vec<T> v) const {
    const Vec<T> u = hn::Div(hn::Mul(m, inverse), mul_add(hn::Sqrt(v), root, eps));
    return hn::Add(u, hn::Mul(weight_decay, p));
  }
};

template <class T>
HWY_INLINE double sum_squares_any(const T* x, int64_t count);

constexpr int64_t kTile = 1024;  // elements of a direction that stay in L1 between two loops over them

/// The part of a run that begins at `at`, at most one tile long.
template <class T>
HWY_INLINE UpdateRun<T> tile_of(const UpdateRun<T>& r, int64_t at) {
  const auto from = [&](auto* x) { return x == nullptr ? x : x + at; };
  return {from(r.param),
          from(r.grad),
          {from(r.state[0]), from(r.state[1])},
          from(r.param_out),
          {from(r.state_out[0]), from(r.state_out[1])},
          std::min(kTile, r.n - at)};
}

/// For each tile: the moments, the direction into L1, then both sums of squares.
template <class T>
HWY_INLINE RunNorms lamb_moments_any(const LambRule& rule, const UpdateRun<T>& run) {
  const Vec<T> scale = all<T>(rule.grad_scale);
  const Vec<T> b1 = all<T>(rule.beta1), t1 = all<T>(rule.take1);
  const Vec<T> b2 = all<T>(rule.beta2), t2 = all<T>(1 - rule.beta2);
  const LambDirection<T> direction(rule);
  const auto step = [=](Lanes<T>& v) HWY_ATTR {
    const Vec<T> g = hn::Mul(v.g, scale);
    v.s0 = hn::Add(hn::Mul(b1, v.s0), hn::Mul(t1, g));
    v.s1 = hn::Add(hn::Mul(b2, v.s1), hn::Mul(hn::Mul(t2, g), g));
    v.p = direction(v.p, v.s0, v.s1);
  };
  T u[kTile];
  RunNorms norms;
  for (int64_t at = 0; at < run.n; at += kTile) {
    UpdateRun<T> tile = tile_of(run, at);
    tile.param_out = u;  // the direction is needed for its norm only
    step_run<T>(step, tile);
    norms.param += sum_squares_any(tile.param, tile.n);
    norms.update += sum_squares_any(u, tile.n);
  }
  return norms;
}

template <class T>
HWY_INLINE void lamb_apply_any(const LambRule& rule, double rate_of_tensor, const UpdateRun<T>& run) {
  const LambDirection<T> direction(rule);
  const Vec<T> rate = all<T>(rate_of_tensor);
  UpdateRun<T> r = run;
  for (int i : {0, 1}) {
    r.state[i] = run.state_out[i];
    r.state_out[i] = nullptr;
  }
  r.grad = nullptr;
  step_run<T>([=](Lanes<T>& v) HWY_ATTR { v.p = hn::Sub(v.p, hn::Mul(rate, direction(v.p, v.s0, v.s1))); },
              r);
}

template <class T>
HWY_INLINE void lars_any(const LarsRule& rule, const UpdateRun<T>& run) {
  const Vec<T> scale = all<T>(rule.grad_scale), mu = all<T>(rule.momentum);
  const Vec<T> decay = all<T>(rule.weight_decay), rate = all<T>(rule.rate);
  step_run<T>(
      [=](Lanes<T>& v) HWY_ATTR {
        const Vec<T> g = hn::Add(hn::Mul(v.g, scale), hn::Mul(decay, v.p));
        v.s0 = hn::Add(hn::Mul(mu, v.s0), hn::Mul(rate, g));
        v.p = hn::Sub(v.p, v.s0);
      },
      run);
}

template <class T>
HWY_INLINE void ema_any(double keep, const UpdateRun<T>& run) {
  const Vec<T> k = all<T>(keep), take = all<T>(1 - keep);
  step_run<T>([=](Lanes<T>& v) HWY_ATTR { v.p = hn::Add(hn::Mul(k, v.p), hn::Mul(take, v.g)); }, run);
}

template <class T>
HWY_INLINE void accumulate_any(const UpdateRun<T>& run) {
  step_run<T>([](Lanes<T>& v) HWY_ATTR { v.p = hn::Add(v.p, v.g); }, run);
}

template <class T>
HWY_INLINE void mean_square_any(double take_of, double grad_scale, const UpdateRun<T>& run) {
  const Vec<T> take = all<T>(take_of), scale = all<T>(grad_scale);
  step_run<T>(
      [=](Lanes<T>& v) HWY_ATTR {
        const Vec<T> g = hn::Mul(v.g, scale);
        v.p = hn::Add(v.p, hn::Mul(take, hn::Sub(hn::Mul(g, g), v.p)));
      },
      run);
}

/// Written in the form of lerp, with the roundings of PyTorch.
template <class T>
HWY_INLINE void muon_momentum_any(const MuonMomentum& rule, const UpdateRun<T>& run) {
  const Vec<T> scale = all<T>(rule.grad_scale), take = all<T>(rule.take), mu = all<T>(1 - rule.take);
  const bool nesterov = rule.nesterov;
  step_run<T>(
      [=](Lanes<T>& v) HWY_ATTR {
        const Vec<T> g = hn::Mul(v.g, scale);
        v.s0 = hn::Add(v.s0, hn::Mul(take, hn::Sub(g, v.s0)));
        v.p = nesterov ? hn::Add(g, hn::Mul(mu, hn::Sub(v.s0, g))) : v.s0;
      },
      run);
}

template <class T>
HWY_INLINE void blend_any(const Blend<T>& blend, const T* x, const T* y0, T* y, int64_t n) {
  const Vec<T> a = all<T>(static_cast<double>(blend.a)), b = all<T>(static_cast<double>(blend.b));
  step_run<T>([=](Lanes<T>& v) HWY_ATTR { v.p = hn::Add(hn::Mul(a, v.g), hn::Mul(b, v.p)); },
              UpdateRun<T>{y0, x, {}, y, {}, n});
}

template <class T>
HWY_INLINE void scale_any(const T* x, T scale, T* y, int64_t n) {
  const Vec<T> s = all<T>(static_cast<double>(scale));
  step_run<T>([=](Lanes<T>& v) HWY_ATTR { v.p = hn::Mul(v.p, s); }, UpdateRun<T>{x, nullptr, {}, y, {}, n});
}

template <class T>
HWY_INLINE void direction_any(const FactoredRow& rule, const T* grad, const T* variance, T* u, int64_t n) {
  const Vec<T> scale = all<T>(rule.grad_scale), row = all<T>(rule.row), floor = all<T>(rule.floor);
  step_run<T>(
      [=](Lanes<T>& v) HWY_ATTR {
        // A NaN variance must propagate: max_or_second returns its second operand if either is NaN.
        const Vec<T> square = max_or_second(floor, hn::Mul(row, v.p));
        v.p = hn::Div(hn::Mul(v.g, scale), hn::Sqrt(square));
      },
      UpdateRun<T>{variance, grad, {}, u, {}, n});
}

// Reductions keep 16 running sums in f64; element i goes to sum i mod 16 at every SIMD level.
constexpr size_t kSums = 16;
constexpr size_t kWide = HWY_LANES(double);
constexpr size_t kSumVectors = kSums / kWide;

// Loads as many elements as a vector of doubles holds.
HWY_INLINE Vec<double> load_wide(const float* x) {
  return hn::PromoteTo(Tag<double>(), hn::LoadU(hn::Rebind<float, Tag<double>>(), x));
}
HWY_INLINE Vec<double> load_wide(const double* x) { return hn::LoadU(Tag<double>(), x); }

template <class T>
HWY_INLINE double sum_squares_any(const T* x, int64_t count) {
  const Tag<double> d;
  const size_t n = static_cast<size_t>(count);
  Vec<double> acc[kSumVectors];
  for (size_t k = 0; k < kSumVectors; ++k) acc[k] = hn::Zero(d);
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t k = 0; k < kSumVectors; ++k) {
      const Vec<double> v = load_wide(x + i + k * kWide);
      acc[k] = mul_add(v, v, acc[k]);
    }
  }
  HWY_ALIGN double sums[kSums];
  for (size_t k = 0; k < kSumVectors; ++k) hn::Store(acc[k], d, sums + k * kWide);
  for (size_t k = 0; i < n; ++i, ++k) sums[k] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

template <class T>
HWY_INLINE void add_squares_any(const T* x, double* sums, int64_t count) {
  const Tag<double> d;
  const size_t n = static_cast<size_t>(count);
  size_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    const Vec<double> v = load_wide(x + i);
    hn::StoreU(mul_add(v, v, hn::LoadU(d, sums + i)), d, sums + i);
  }
  for (; i < n; ++i) sums[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
}

// The exported instances: suffix f for float, d for double.
#define TRIREME_RULE(name, Rule)                                                      \
  void name##_f(const Rule& rule, const UpdateRun<float>& r) { name##_any(rule, r); } \
  void name##_d(const Rule& rule, const UpdateRun<double>& r) { name##_any(rule, r); }
TRIREME_RULE(sgd, SgdRule)
TRIREME_RULE(adam, AdamRule)
TRIREME_RULE(lars, LarsRule)
TRIREME_RULE(muon_momentum, MuonMomentum)
TRIREME_RULE(ema, double)
#undef TRIREME_RULE

#define TRIREME_BOTH(T, s)                                                                                   \
  RunNorms lamb_moments_##s(const LambRule& g, const UpdateRun<T>& r) { return lamb_moments_any(g, r); }     \
  void lamb_apply_##s(const LambRule& g, double rate, const UpdateRun<T>& r) { lamb_apply_any(g, rate, r); } \
  void accumulate_##s(const UpdateRun<T>& r) { accumulate_any(r); }                                          \
  void mean_square_##s(double t, double g, const UpdateRun<T>& r) { mean_square_any(t, g, r); }              \
  double sum_squares_##s(const T* x, int64_t n) { return sum_squares_any(x, n); }                            \
  void add_squares_##s(const T* x, double* sums, int64_t n) { add_squares_any(x, sums, n); }                 \
  void direction_##s(const FactoredRow& g, const T* x, const T* v, T* u, int64_t n) {                        \
    direction_any(g, x, v, u, n);                                                                            \
  }                                                                                                          \
  void scale_##s(const T* x, T by, T* y, int64_t n) { scale_any(x, by, y, n); }                              \
  void blend_##s(const Blend<T>& b, const T* x, const T* y0, T* y, int64_t n) { blend_any(b, x, y0, y, n); }
TRIREME_BOTH(float, f)
TRIREME_BOTH(double, d)
#undef TRIREME_BOTH

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

#define TRIREME_RULE(name, Rule)                                          \
  HWY_EXPORT(name##_f);                                                   \
  HWY_EXPORT(name##_d);                                                   \
  template <>                                                             \
  void name##_run<float>(const Rule& rule, const UpdateRun<float>& r) {   \
    HWY_DYNAMIC_DISPATCH(name##_f)(rule, r);                              \
  }                                                                       \
  template <>                                                             \
  void name##_run<double>(const Rule& rule, const UpdateRun<double>& r) { \
    HWY_DYNAMIC_DISPATCH(name##_d)(rule, r);                              \
  }
TRIREME_RULE(sgd, SgdRule)
TRIREME_RULE(adam, AdamRule)
TRIREME_RULE(lars, LarsRule)
#undef TRIREME_RULE

HWY_EXPORT(ema_f);
HWY_EXPORT(ema_d);
template <>
void ema_run<float>(double keep, const UpdateRun<float>& run) {
  HWY_DYNAMIC_DISPATCH(ema_f)(keep, run);
}
template <>
void ema_run<double>(double keep, const UpdateRun<double>& run) {
  HWY_DYNAMIC_DISPATCH(ema_d)(keep, run);
}

HWY_EXPORT(muon_momentum_f);
HWY_EXPORT(muon_momentum_d);
template <>
void muon_momentum<float>(const MuonMomentum& rule, const UpdateRun<float>& run) {
  HWY_DYNAMIC_DISPATCH(muon_momentum_f)(rule, run);
}
template <>
void muon_momentum<double>(const MuonMomentum& rule, const UpdateRun<double>& run) {
  HWY_DYNAMIC_DISPATCH(muon_momentum_d)(rule, run);
}

#define TRIREME_BOTH(T, s)                                                                                 \
  HWY_EXPORT(lamb_moments_##s);                                                                            \
  HWY_EXPORT(lamb_apply_##s);                                                                              \
  HWY_EXPORT(accumulate_##s);                                                                              \
  HWY_EXPORT(mean_square_##s);                                                                             \
  HWY_EXPORT(sum_squares_##s);                                                                             \
  HWY_EXPORT(add_squares_##s);                                                                             \
  HWY_EXPORT(direction_##s);                                                                               \
  HWY_EXPORT(scale_##s);                                                                                   \
  HWY_EXPORT(blend_##s);                                                                                   \
  template <>                                                                                              \
  RunNorms lamb_moments<T>(const LambRule& rule, const UpdateRun<T>& run) {                                \
    return HWY_DYNAMIC_DISPATCH(lamb_moments_##s)(rule, run);                                              \
  }                                                                                                        \
  template <>                                                                                              \
  void lamb_apply<T>(const LambRule& rule, double rate, const UpdateRun<T>& run) {                         \
    HWY_DYNAMIC_DISPATCH(lamb_apply_##s)(rule, rate, run);                                                 \
  }                                                                                                        \
  template <>                                                                                              \
  void accumulate_run<T>(const UpdateRun<T>& run) {                                                        \
    HWY_DYNAMIC_DISPATCH(accumulate_##s)(run);                                                             \
  }                                                                                                        \
  template <>                                                                                              \
  void mean_square_run<T>(double take, double grad_scale, const UpdateRun<T>& run) {                       \
    HWY_DYNAMIC_DISPATCH(mean_square_##s)(take, grad_scale, run);                                          \
  }                                                                                                        \
  template <>                                                                                              \
  double sum_squares<T>(const T* x, int64_t n) {                                                           \
    return HWY_DYNAMIC_DISPATCH(sum_squares_##s)(x, n);                                                    \
  }                                                                                                        \
  template <>                                                                                              \
  void add_squares<T>(const T* x, double* sums, int64_t n) {                                               \
    HWY_DYNAMIC_DISPATCH(add_squares_##s)(x, sums, n);                                                     \
  }                                                                                                        \
  template <>                                                                                              \
  void factored_direction<T>(const FactoredRow& rule, const T* grad, const T* variance, T* u, int64_t n) { \
    HWY_DYNAMIC_DISPATCH(direction_##s)(rule, grad, variance, u, n);                                       \
  }                                                                                                        \
  template <>                                                                                              \
  void scale_run<T>(const T* x, T scale, T* y, int64_t n) {                                                \
    HWY_DYNAMIC_DISPATCH(scale_##s)(x, scale, y, n);                                                       \
  }                                                                                                        \
  template <>                                                                                              \
  void blend_run<T>(const Blend<T>& blend, const T* x, const T* y0, T* y, int64_t n) {                     \
    HWY_DYNAMIC_DISPATCH(blend_##s)(blend, x, y0, y, n);                                                   \
  }
TRIREME_BOTH(float, f)
TRIREME_BOTH(double, d)
#undef TRIREME_BOTH

}  // namespace trireme::cpu
#endif  // HWY_ONCE
