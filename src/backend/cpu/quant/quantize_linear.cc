// Quantisation kernels: divide, round, shift, clamp in f32 lanes, then narrow to bytes.
#include "backend/cpu/quant/quantize_linear.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quant/quantize_linear.cc"
#include "hwy/foreach_target.h"
#ifndef TRIREME_QUANTIZE_SHARED
#define TRIREME_QUANTIZE_SHARED
namespace trireme::cpu {
namespace {

// A run with one scale: q = clamp(round(x / scale) + zero, lo, hi).
struct QuantRun {
  float scale, zero, lo, hi;
};

// The range of some numbers and zero.
struct Extremes {
  float lo = 0.0f, hi = 0.0f;
  bool has_nan = false;
};

}  // namespace
}  // namespace trireme::cpu
#endif
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_reduce.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

// The quantised value as a float: a whole number in range, where NaN became 0.
HWY_INLINE VF quantized(VF v, VF scale, const QuantRun& r) {
  const VF q = hn::Round(hn::Div(v, scale));
  const VF shifted = hn::Add(hn::IfThenElseZero(hn::Eq(q, q), q), set(r.zero));
  return clamp_keep_nan(shifted, r.lo, r.hi);
}

template <class T>
HWY_INLINE void quantize_run(const float* x, T* y, size_t n, const QuantRun& r) {
  const VF scale = set(r.scale);
  size_t i = 0;
  const hn::Rebind<T, F32> narrow;
  for (; i + kLanes <= n; i += kLanes) {
    const VI q = hn::NearestInt(quantized(hn::LoadU(kF, x + i), scale, r));
    hn::StoreU(hn::DemoteTo(narrow, q), narrow, y + i);
  }
  if (i == n) return;
  HWY_ALIGN float lanes[kLanes];
  hn::Store(quantized(load_n(x + i, n - i), scale, r), kF, lanes);
  for (size_t k = 0; k < n - i; ++k) y[i + k] = static_cast<T>(lanes[k]);
}

void quantize_u8(const float* x, uint8_t* y, size_t n, const QuantRun& r) { quantize_run(x, y, n, r); }
void quantize_i8(const float* x, int8_t* y, size_t n, const QuantRun& r) { quantize_run(x, y, n, r); }

void extremes_of(const float* x, size_t n, Extremes* out) {
  constexpr size_t kChains = 4;
  VF lo[kChains], hi[kChains];
  for (size_t k = 0; k < kChains; ++k) lo[k] = hi[k] = hn::Zero(kF);
  MF nan = not_equal(lo[0], lo[0]);
  const auto take = [&](VF v, size_t k) HWY_ATTR {
    nan = hn::Or(nan, not_equal(v, v));
    lo[k] = min_or_second(v, lo[k]);
    hi[k] = max_or_second(v, hi[k]);
  };
  size_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    for (size_t k = 0; k < kChains; ++k) take(hn::LoadU(kF, x + i + k * kLanes), k);
  }
  for (; i < n; i += kLanes) take(load_n(x + i, std::min(kLanes, n - i)), 0);
  for (size_t k = 1; k < kChains; ++k) {
    lo[0] = min_or_second(lo[0], lo[k]);
    hi[0] = max_or_second(hi[0], hi[k]);
  }
  *out = {fold_lanes(lo[0], MinFold()), fold_lanes(hi[0], MaxFold()), !hn::AllFalse(kF, nan)};
}

// The compiler vectorises these for the level they are compiled at.
template <class T>
HWY_INLINE void dequantize_run(const T* x, float* y, size_t n, float scale, int32_t zero) {
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<int32_t>(x[i]) - zero) * scale;
}
void dequantize_u8(const uint8_t* x, float* y, size_t n, float scale, int32_t zero) {
  dequantize_run(x, y, n, scale, zero);
}
void dequantize_i8(const int8_t* x, float* y, size_t n, float scale, int32_t zero) {
  dequantize_run(x, y, n, scale, zero);
}
// The difference needs 64 bits: i32 minus a zero point of opposite sign overflows 32 bits.
void dequantize_i32(const int32_t* x, float* y, size_t n, float scale, int32_t zero) {
  for (size_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(static_cast<int64_t>(x[i]) - static_cast<int64_t>(zero)) * scale;
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(quantize_u8);
HWY_EXPORT(quantize_i8);
HWY_EXPORT(extremes_of);
HWY_EXPORT(dequantize_u8);
HWY_EXPORT(dequantize_i8);
HWY_EXPORT(dequantize_i32);

namespace {

constexpr int64_t kPiece = 8192;

// Calls body(channel, first element, count) over [outer, axis, inner]; long runs are cut into pieces.
template <class Body>
void for_runs(int64_t outer, int64_t axis, int64_t inner, base::ThreadPool& pool, const Body& body) {
  if (outer <= 0 || axis <= 0 || inner <= 0) return;
  // With one scale per tensor, outer and inner form one run.
  if (axis == 1) inner *= outer, outer = 1;
  const int64_t pieces = (inner + kPiece - 1) / kPiece;
  const int64_t grain = std::max<int64_t>(1, kPiece / std::min(inner, kPiece));
  pool.for_range(outer * axis * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t run = t / pieces, from = t % pieces * kPiece;
      body(run % axis, run * inner + from, static_cast<size_t>(std::min(kPiece, inner - from)));
    }
  });
}

}  // namespace

void quantize_linear(const QuantizeLinear& args, base::ThreadPool& pool) {
  const auto to_u8 = HWY_DYNAMIC_DISPATCH(quantize_u8);
  const auto to_i8 = HWY_DYNAMIC_DISPATCH(quantize_i8);
  const auto* zero_u8 = static_cast<const uint8_t*>(args.zero_point);
  const auto* zero_i8 = static_cast<const int8_t*>(args.zero_point);
  for_runs(args.outer, args.axis, args.inner, pool, [&](int64_t c, int64_t at, size_t n) {
    if (args.type == QuantType::u8) {
      const float zero = zero_u8 != nullptr ? static_cast<float>(zero_u8[c]) : 0.0f;
      to_u8(args.x + at, static_cast<uint8_t*>(args.y) + at, n, {args.scale[c], zero, 0.0f, 255.0f});
    } else {
      const float zero = zero_i8 != nullptr ? static_cast<float>(zero_i8[c]) : 0.0f;
      to_i8(args.x + at, static_cast<int8_t*>(args.y) + at, n, {args.scale[c], zero, -128.0f, 127.0f});
    }
  });
}

void dequantize_linear(const DequantizeLinear& args, base::ThreadPool& pool) {
  using Type = DequantizeLinear::Type;
  const auto from_u8 = HWY_DYNAMIC_DISPATCH(dequantize_u8);
  const auto from_i8 = HWY_DYNAMIC_DISPATCH(dequantize_i8);
  const auto from_i32 = HWY_DYNAMIC_DISPATCH(dequantize_i32);
  for_runs(args.outer, args.axis, args.inner, pool, [&](int64_t c, int64_t at, size_t n) {
    const void* z = args.zero_point;
    float* y = args.y + at;
    switch (args.type) {
      case Type::u8: {
        const int32_t zero = z != nullptr ? static_cast<const uint8_t*>(z)[c] : 0;
        return from_u8(static_cast<const uint8_t*>(args.x) + at, y, n, args.scale[c], zero);
      }
      case Type::i8: {
        const int32_t zero = z != nullptr ? static_cast<const int8_t*>(z)[c] : 0;
        return from_i8(static_cast<const int8_t*>(args.x) + at, y, n, args.scale[c], zero);
      }
      case Type::i32: {
        const int32_t zero = z != nullptr ? static_cast<const int32_t*>(z)[c] : 0;
        return from_i32(static_cast<const int32_t*>(args.x) + at, y, n, args.scale[c], zero);
      }
    }
  });
}

QuantParams dynamic_quantize_params(const float* x, int64_t n, base::ThreadPool& pool) {
  constexpr int64_t kMostShares = 64;
  const int64_t pieces = (n + kPiece - 1) / kPiece, shares = std::min(pieces, kMostShares);
  Extremes part[kMostShares], all;
  const auto share = HWY_DYNAMIC_DISPATCH(extremes_of);
  pool.run(shares, [&](int64_t s) {
    const int64_t begin = pieces * s / shares * kPiece, end = std::min(n, pieces * (s + 1) / shares * kPiece);
    share(x + begin, static_cast<size_t>(end - begin), part + s);
  });
  for (int64_t s = 0; s < shares; ++s) {
    all.lo = std::min(all.lo, part[s].lo);
    all.hi = std::max(all.hi, part[s].hi);
    all.has_nan |= part[s].has_nan;
  }
  if (all.has_nan) return {1.0f, 0};
  const float scale = all.hi > all.lo ? (all.hi - all.lo) / 255.0f : 1.0f;
  const float zero = std::nearbyint(0.0f - all.lo / scale);
  return {scale, static_cast<uint8_t>(std::isnan(zero) ? 0.0f : std::clamp(zero, 0.0f, 255.0f))};
}

QuantParams dynamic_quantize(const float* x, uint8_t* y, int64_t n, base::ThreadPool& pool) {
  const QuantParams p = dynamic_quantize_params(x, n, pool);
  quantize_linear({x, y, QuantType::u8, &p.scale, &p.zero_point, 1, 1, n}, pool);
  return p;
}

}  // namespace trireme::cpu
#endif
