// Weights of 4, 8 and 16 bits times f32 rows: four weight rows at a time, unpacked to registers for one row
// of x, to L1 for several.
#include "backend/cpu/dense/weight_rows.h"

#include <algorithm>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dense/weight_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which sets the level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 32;  // weights that are unpacked together
constexpr size_t kHalf = 16 / kLanes, kVectors = 2 * kHalf;
constexpr int64_t kDepth = 1024;  // weights of a row that stay in L1 unpacked
constexpr int64_t kAhead = 1024;  // bytes: hardware stops looking ahead at the end of a page
constexpr int64_t kRows = 32;     // rows of x that meet them

/// One form of weights: their codes, and whether groups have zero points.
template <WeightCodes kCodesOf, bool kZerosOf = false>
struct Form {
  static constexpr WeightCodes kCodes = kCodesOf;
  static constexpr bool kZeros = kZerosOf;
  static constexpr bool kIsHalf = kCodes == WeightCodes::bf16 || kCodes == WeightCodes::f16;
  static constexpr int kBits = kIsHalf ? 16 : kCodes == WeightCodes::int4 ? 4 : 8;
};

/// Scale and zero point of one group of a row.
struct Step {
  VF scale, zero;
};
template <class F>
HWY_INLINE Step step_of(const WeightRows& w, int64_t row, int64_t group) {
  if constexpr (F::kIsHalf) return {hn::Zero(kF), hn::Zero(kF)};
  const int64_t at = row * (w.k / w.group) + group;
  // 8-bit floats are read as halves with the same bits, which are 2^-8 of them.
  if constexpr (F::kCodes == WeightCodes::e4m3) return {set(w.scale[at] * 256), hn::Zero(kF)};
  return {set(w.scale[at]), set(F::kZeros ? static_cast<float>(w.zero[at]) : F::kBits == 8 ? 0.0f : 8.0f)};
}

/// scale (q - zero), whose difference is exact.
template <bool kShifts>
HWY_INLINE VF real(VI code, const Step& step) {
  const VF q = hn::ConvertTo(kF, code);
  return hn::Mul(kShifts ? hn::Sub(q, step.zero) : q, step.scale);
}

/// Floats of 16 bits, and E4M3 codes as the halves that are 2^-8 of them.
template <class F>
HWY_INLINE VF float_codes(const uint8_t* p) {
  const hn::Rebind<uint16_t, F32> bits;
  const hn::Rebind<hwy::float16_t, F32> halves;
  if constexpr (F::kCodes == WeightCodes::bf16) {
    const VI wide = hn::PromoteTo(kI, hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p)));
    return hn::BitCast(kF, hn::ShiftLeft<16>(wide));
  } else if constexpr (F::kCodes == WeightCodes::f16) {
    return hn::PromoteTo(kF, hn::BitCast(halves, hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p))));
  } else {
    const hn::Rebind<uint8_t, F32> bytes;
    const auto code = hn::PromoteTo(bits, hn::LoadU(bytes, p));
    const auto magnitude = hn::And(code, hn::Set(bits, 0x7f));
    const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(bits, 0x80)));
    const auto nan =
        hn::And(hn::VecFromMask(bits, hn::Eq(magnitude, hn::Set(bits, 0x7f))), hn::Set(bits, 0x7c00));
    const auto half = hn::Or(hn::Or(hn::ShiftLeft<7>(magnitude), sign), nan);
    return hn::PromoteTo(kF, hn::BitCast(halves, half));
  }
}

/// 32 weights as real numbers.
template <class F>
HWY_INLINE void unpack(const uint8_t* p, const Step& step, VF (&out)[kVectors]) {
  if constexpr (F::kIsHalf) {
    for (size_t v = 0; v < kVectors; ++v) out[v] = float_codes<F>(p + 2 * v * kLanes);
  } else if constexpr (F::kCodes == WeightCodes::e4m3) {
    for (size_t v = 0; v < kVectors; ++v) out[v] = hn::Mul(float_codes<F>(p + v * kLanes), step.scale);
  } else if constexpr (F::kBits == 8) {
    const hn::Rebind<int8_t, I32> bytes;
    const auto* q = reinterpret_cast<const int8_t*>(p);
    for (size_t v = 0; v < kVectors; ++v)
      out[v] = real<F::kZeros>(hn::PromoteTo(kI, hn::LoadU(bytes, q + v * kLanes)), step);
  } else {
    const hn::Rebind<uint8_t, I32> bytes;
#if HWY_TARGET == HWY_AVX3
    // The group's sixteen numbers in one register: looking up takes the low four bits of a lane.
    const VF table = real<true>(hn::Iota(kI, 0), step);
    const VI pair = hn::PromoteTo(kI, hn::LoadU(bytes, p));
    out[0] = VF{_mm512_permutexvar_ps(pair.raw, table.raw)};
    out[1] = VF{_mm512_permutexvar_ps(hn::ShiftRight<4>(pair).raw, table.raw)};
#else
    for (size_t v = 0; v < kHalf; ++v) {
      const VI pair = hn::PromoteTo(kI, hn::LoadU(bytes, p + v * kLanes));
      out[v] = real<true>(hn::And(pair, hn::Set(kI, 15)), step);
      out[kHalf + v] = real<true>(hn::ShiftRight<4>(pair), step);
    }
#endif
  }
}

/// The sum of a result from its two chains.
HWY_INLINE float total(VF a, VF b) { return hn::GetLane(hn::SumOfLanes(kF, hn::Add(a, b))); }

/// y[row ...] of one row of x, kN weight rows together.
template <class F, int kN>
HWY_INLINE void stream_rows(const WeightRows& w, int64_t row, const float* x, float* y) {
  VF sum[kN][2];
  for (auto& s : sum) s[0] = s[1] = hn::Zero(kF);
  const int64_t bytes = w.k * F::kBits / 8, blocks = w.group / kBlock;
  for (int64_t g = 0; g < w.k / w.group; ++g) {
    Step step[kN];
    for (int r = 0; r < kN; ++r) {
      step[r] = step_of<F>(w, row + r, g);
      const uint8_t* ahead = w.w + (row + r) * bytes + g * w.group * F::kBits / 8 + kAhead;
      for (int64_t line = 0; line < w.group * F::kBits / 8; line += 64) __builtin_prefetch(ahead + line);
    }
    for (int64_t b = g * blocks; b < (g + 1) * blocks; ++b) {
      VF in[kVectors];
      for (size_t v = 0; v < kVectors; ++v) in[v] = hn::LoadU(kF, x + b * kBlock + v * kLanes);
      for (int r = 0; r < kN; ++r) {
        VF weight[kVectors];
        const uint8_t* from = w.w + (row + r) * bytes + b * kBlock * F::kBits / 8;
        unpack<F>(from, step[r], weight);
        for (size_t v = 0; v < kVectors; ++v)
          sum[r][v / kHalf] = hn::MulAdd(weight[v], in[v], sum[r][v / kHalf]);
      }
    }
  }
  for (int r = 0; r < kN; ++r) y[r] = total(sum[r][0], sum[r][1]);
}

/// Weights [first, first + depth) of one row to floats.
template <class F>
HWY_INLINE void unpack_row(const WeightRows& w, int64_t row, int64_t first, int64_t depth, float* to) {
  const uint8_t* from = w.w + row * (w.k * F::kBits / 8);
  for (int64_t i = first; i < first + depth; i += kBlock) {
    const Step step = step_of<F>(w, row, i / w.group);
    VF weight[kVectors];
    unpack<F>(from + i * F::kBits / 8, step, weight);
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(weight[v], kF, to + (i - first) + v * kLanes);
  }
}

/// The chains of kM rows of x with kN rows of weights go on over `depth`. sums [kM][kN][2][lanes].
template <int kM, int kN>
HWY_INLINE void add_products(const float* x, int64_t k, const float* weights, int64_t depth, float* sums) {
  VF sum[kM][kN][2];
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      for (int h = 0; h < 2; ++h)
        sum[m][n][h] = hn::LoadU(kF, sums + static_cast<size_t>((m * kN + n) * 2 + h) * kLanes);
    }
  }
  for (int64_t i = 0; i < depth; i += kBlock) {
    for (size_t v = 0; v < kVectors; ++v) {
      VF in[kM];
      for (int m = 0; m < kM; ++m) in[m] = hn::LoadU(kF, x + m * k + i + v * kLanes);
      for (int n = 0; n < kN; ++n) {
        const VF weight = hn::LoadU(kF, weights + n * kDepth + i + v * kLanes);
        for (int m = 0; m < kM; ++m) sum[m][n][v / kHalf] = hn::MulAdd(weight, in[m], sum[m][n][v / kHalf]);
      }
    }
  }
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      for (int h = 0; h < 2; ++h)
        hn::StoreU(sum[m][n][h], kF, sums + static_cast<size_t>((m * kN + n) * 2 + h) * kLanes);
    }
  }
}

/// kN columns of y from `row` on, for up to kRows rows of x.
template <class F, int kN>
HWY_INLINE void tile(const WeightRowsCall& call, int64_t row, int64_t first, int64_t count) {
  const WeightRows& w = call.weights;
  HWY_ALIGN float weights[kN * kDepth];
  HWY_ALIGN float sums[kRows * kN * 2 * kLanes] = {};
  constexpr int64_t kEach = kN * 2 * static_cast<int64_t>(kLanes);
  for (int64_t at = 0; at < w.k; at += kDepth) {
    const int64_t depth = std::min(kDepth, w.k - at);
    for (int n = 0; n < kN; ++n) unpack_row<F>(w, row + n, at, depth, weights + n * kDepth);
    const float* x = call.x + first * w.k + at;
    int64_t m = 0;
    for (; m + 2 <= count; m += 2) add_products<2, kN>(x + m * w.k, w.k, weights, depth, sums + m * kEach);
    if (m < count) add_products<1, kN>(x + m * w.k, w.k, weights, depth, sums + m * kEach);
  }
  for (int64_t m = 0; m < count; ++m) {
    for (int n = 0; n < kN; ++n) {
      const float* chains = sums + (m * kN + n) * 2 * static_cast<int64_t>(kLanes);
      call.y[(first + m) * w.n + row + n] = total(hn::LoadU(kF, chains), hn::LoadU(kF, chains + kLanes));
    }
  }
}

template <class F, int kN>
HWY_INLINE void columns(const WeightRowsCall& call, int64_t row) {
  if (call.m == 1) {
    stream_rows<F, kN>(call.weights, row, call.x, call.y + row);
  } else {
    for (int64_t m = 0; m < call.m; m += kRows) tile<F, kN>(call, row, m, std::min(kRows, call.m - m));
  }
  if (call.bias == nullptr) return;
  for (int64_t m = 0; m < call.m; ++m) {
    for (int n = 0; n < kN; ++n) call.y[m * call.weights.n + row + n] += call.bias[row + n];
  }
}

template <class F>
HWY_INLINE void range_of(const WeightRowsCall& call, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) columns<F, 4>(call, row);
  for (; row < end; ++row) columns<F, 1>(call, row);
}

/// Columns [begin, end) of y.
void weight_range(const WeightRowsCall& call, int64_t begin, int64_t end) {
  const bool has_zeros = call.weights.zero != nullptr;
  switch (call.weights.codes) {
    case WeightCodes::bf16: return range_of<Form<WeightCodes::bf16>>(call, begin, end);
    case WeightCodes::f16: return range_of<Form<WeightCodes::f16>>(call, begin, end);
    case WeightCodes::e4m3: return range_of<Form<WeightCodes::e4m3>>(call, begin, end);
    case WeightCodes::int8:
      return has_zeros ? range_of<Form<WeightCodes::int8, true>>(call, begin, end)
                       : range_of<Form<WeightCodes::int8>>(call, begin, end);
    case WeightCodes::int4:
      return has_zeros ? range_of<Form<WeightCodes::int4, true>>(call, begin, end)
                       : range_of<Form<WeightCodes::int4>>(call, begin, end);
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {
namespace {
HWY_EXPORT(weight_range);
}

namespace {

int64_t bits_of(WeightCodes codes) {
  if (codes == WeightCodes::bf16 || codes == WeightCodes::f16) return 16;
  return codes == WeightCodes::int4 ? 4 : 8;
}

/// Four columns at a time that make a task: some ten thousand bytes of weights, or as many multiply-adds.
int64_t fours_of(const WeightRows& w, int64_t m) {
  const int64_t work = w.k * std::min<int64_t>(m, 32);
  return std::clamp<int64_t>(32768 / std::max<int64_t>(1, work), 1, 64);
}

/// One group as a call of its own.
WeightRowsCall call_of(const WeightGroupsCall& all, const RowGroup& group) {
  WeightRows w = all.weights;
  const int64_t rows = group.matrix * w.n, scales = rows * (w.k / w.group);
  w.w += rows * (w.k * bits_of(w.codes) / 8);
  if (w.scale != nullptr) w.scale += scales;
  if (w.zero != nullptr) w.zero += scales;
  return {.weights = w,
          .x = all.x + group.first * w.k,
          .bias = all.bias == nullptr ? nullptr : all.bias + rows,
          .y = all.y + group.first * w.n,
          .m = group.rows};
}

}  // namespace

void weight_rows(const WeightRowsCall& call, base::ThreadPool& pool) {
  if (call.m == 0) return;
  const auto range = HWY_DYNAMIC_DISPATCH(weight_range);
  const int64_t quads = (call.weights.n + 3) / 4;
  pool.for_range(quads, fours_of(call.weights, call.m), [&](int64_t begin, int64_t end) {
    range(call, begin * 4, std::min(call.weights.n, end * 4));
  });
}

void weight_row_groups(const WeightGroupsCall& call, base::ThreadPool& pool) {
  if (call.groups.empty()) return;
  const auto range = HWY_DYNAMIC_DISPATCH(weight_range);
  const int64_t n = call.weights.n, quads = (n + 3) / 4;
  int64_t rows = 0;
  for (const RowGroup& g : call.groups) rows += g.rows;
  const auto count = static_cast<int64_t>(call.groups.size());
  pool.for_range(quads * count, fours_of(call.weights, rows / count), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t group = begin / quads, until = std::min(end, (group + 1) * quads);
      const WeightRowsCall one = call_of(call, call.groups[static_cast<size_t>(group)]);
      range(one, (begin - group * quads) * 4, std::min(n, (until - group * quads) * 4));
      begin = until;
    }
  });
}

}  // namespace trireme::cpu
#endif
