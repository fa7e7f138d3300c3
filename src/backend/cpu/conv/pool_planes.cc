// Loops over contiguous elements that the compiler turns into vectors of each SIMD level.
#include "backend/cpu/conv/pool_planes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/pool_planes.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
struct Max {
  static T start() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  static T map(T x) { return x; }
  static T join(T a, T b) { return b > a || b != b ? b : a; }
};

template <class T>
struct Sum {
  static T start() { return 0; }
  static T map(T x) { return x; }
  static T join(T a, T b) { return a + b; }
};

struct Absolutes : Sum<float> {
  static float map(float x) { return std::fabs(x); }
};

struct Squares : Sum<float> {
  static float map(float x) { return x * x; }
};

template <class F, class T>
void join_rows(const PoolRow& g, T* line) {
  const auto row = [&](int64_t i) { return static_cast<const T*>(g.rows[i]); };
  int64_t r = 1;
  if (g.row_count == 0) {
    std::fill_n(line, g.in, F::start());
  } else if (g.row_count >= 3) {
    const T *a = row(0), *b = row(1), *c = row(2);
    for (int64_t i = 0; i < g.in; ++i) line[i] = F::join(F::join(F::map(a[i]), F::map(b[i])), F::map(c[i]));
    r = 3;
  } else {
    const T* a = row(0);
    for (int64_t i = 0; i < g.in; ++i) line[i] = F::map(a[i]);
  }
  for (; r < g.row_count; ++r) {
    const T* a = row(r);
    for (int64_t i = 0; i < g.in; ++i) line[i] = F::join(line[i], F::map(a[i]));
  }
}

// kStride 0: any.
template <class F, int kStride, class T>
void join_columns(const PoolRow& g, const T* HWY_RESTRICT line, T* HWY_RESTRICT y) {
  const int64_t s = kStride > 0 ? kStride : g.stride, n = g.out, d = g.dilation;
  int64_t k = 1;
  if (g.kernel >= 3) {
    for (int64_t o = 0; o < n; ++o)
      y[o] = F::join(F::join(line[o * s], line[o * s + d]), line[o * s + 2 * d]);
    k = 3;
  } else {
    for (int64_t o = 0; o < n; ++o) y[o] = line[o * s];
  }
  for (; k < g.kernel; ++k) {
    const T* at = line + k * d;
    for (int64_t o = 0; o < n; ++o) y[o] = F::join(y[o], at[o * s]);
  }
}

template <class F, class T>
void fold_row(const PoolRow& g) {
  T *line = static_cast<T*>(g.line), *y = static_cast<T*>(g.y);
  const int64_t inside = std::min(g.in, g.width - g.pad);  // the last columns may be of no window
  std::fill_n(line, g.pad, F::start());
  PoolRow cut = g;
  cut.in = inside;
  join_rows<F>(cut, line + g.pad);
  std::fill(line + g.pad + inside, line + g.width, F::start());
  if (g.stride == 1) return join_columns<F, 1>(g, line, y);
  if (g.stride == 2) return join_columns<F, 2>(g, line, y);
  join_columns<F, 0>(g, line, y);
}

void fold_any(const PoolRow& g) {
  float* y = static_cast<float*>(g.y);
  switch (g.fold) {
    case PoolFold::max:
      if (g.dtype == tensor::DType::u8) return fold_row<Max<uint8_t>, uint8_t>(g);
      if (g.dtype == tensor::DType::i8) return fold_row<Max<int8_t>, int8_t>(g);
      return fold_row<Max<float>, float>(g);
    case PoolFold::average:
      fold_row<Sum<float>, float>(g);
      for (int64_t o = 0; o < g.out; ++o) y[o] /= g.count[o];
      return;
    case PoolFold::l1: return fold_row<Absolutes, float>(g);
    case PoolFold::l2:
      fold_row<Squares, float>(g);
      for (int64_t o = 0; o < g.out; ++o) y[o] = std::sqrt(y[o]);
      return;
  }
}

void place_run(const PlacedMaxima& g) {
  int64_t i = 0;
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  VI at = hn::Add(hn::Set(kI, g.first), hn::Mul(hn::Iota(kI, 0), hn::Set(kI, g.step)));
  const VI next = hn::Set(kI, g.step * static_cast<int32_t>(kLanes));
  for (; i + kStep <= g.n; i += kStep, at = hn::Add(at, next)) {
    const VF v = hn::LoadU(kF, g.v + i), best = hn::LoadU(kF, g.best + i);
    const VI where = hn::LoadU(kI, g.where + i);
    const MF is_none = hn::RebindMask(kF, hn::Lt(where, hn::Zero(kI)));
    const MF is_taken = hn::Or(hn::Or(hn::Gt(v, best), not_equal(v, v)), is_none);
    hn::StoreU(hn::IfThenElse(is_taken, v, best), kF, g.best + i);
    hn::StoreU(hn::IfThenElse(hn::RebindMask(kI, is_taken), at, where), kI, g.where + i);
  }
  for (int32_t here = g.first + static_cast<int32_t>(i) * g.step; i < g.n; ++i, here += g.step) {
    if (!(g.v[i] > g.best[i]) && g.v[i] == g.v[i] && g.where[i] >= 0) continue;
    g.best[i] = g.v[i];
    g.where[i] = here;
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(fold_any);
HWY_EXPORT(place_run);

void pool_row(const PoolRow& args) { HWY_DYNAMIC_DISPATCH(fold_any)(args); }

void place_maxima(const PlacedMaxima& args) { HWY_DYNAMIC_DISPATCH(place_run)(args); }

}  // namespace trireme::cpu
#endif
