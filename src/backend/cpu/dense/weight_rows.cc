// Weights of 4, 8 and 16 bits times f32 rows: four weight rows at a time, unpacked to registers for one row
// of x, to L1 for a few; blocks of them to L2 for many.
#include "backend/cpu/dense/weight_rows.h"

#include <algorithm>
#include <type_traits>

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
constexpr int64_t kDepth = 1024;             // weights of a row that are unpacked to memory together
constexpr int64_t kChain = kDepth / 2 + 16;  // floats of one chain; a line more, so that rows share no set
constexpr int64_t kAhead = 1024;             // bytes: hardware stops looking ahead at the end of a page
// Rows of x and of weights that meet: each block of x is read again for every kColumns weights, and these are
// unpacked again for every kRows of x. With their sums they take 440 KiB at most.
constexpr int64_t kRows = 36, kColumns = 32;
constexpr int64_t kFewRows = 8, kFewColumns = 4;

/// One form of weights: their codes, and whether groups have zero points.
template <WeightCodes kCodesOf, bool kZerosOf = false>
struct Form {
  static constexpr WeightCodes kCodes = kCodesOf;
  static constexpr bool kZeros = kZerosOf;
  static constexpr bool kIsHalf = kCodes == WeightCodes::bf16 || kCodes == WeightCodes::f16;
  static constexpr int kBits = kIsHalf ? 16 : kCodes == WeightCodes::int4 ? 4 : 8;
};

/// A part of y.
struct Corner {
  int64_t column, columns, first, rows;
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
    // What follows a row is the row beside it, which is under way: look ahead into the one kN further on.
    const int64_t at = g * w.group * F::kBits / 8 + kAhead;
    const bool turns = F::kBits > 4 && at >= bytes;  // of 4 bits, arithmetic is what takes the time
    const uint8_t* ahead = w.w + row * bytes + at + (turns ? (kN - 1) * bytes : 0);
    for (int r = 0; r < kN; ++r) {
      step[r] = step_of<F>(w, row + r, g);
      for (int64_t line = 0; line < w.group * F::kBits / 8; line += 64)
        __builtin_prefetch(ahead + r * bytes + line);
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

/// Where the floats of a row go: `block` floats apart those of 32 weights, `other` floats behind those of the
/// first chain those of the second.
struct Place {
  float* to;
  int64_t block, other;
};
HWY_INLINE Place together(float* to) { return {to, kBlock, kBlock / 2}; }
HWY_INLINE Place apart(float* to) { return {to, kBlock / 2, kChain}; }

/// Weights [first, first + depth) of one row to floats.
template <class F>
HWY_INLINE void unpack_row(const WeightRows& w, int64_t row, int64_t first, int64_t depth, Place place) {
  const uint8_t* from = w.w + row * (w.k * F::kBits / 8);
  for (int64_t i = first; i < first + depth; i += kBlock, place.to += place.block) {
    const Step step = step_of<F>(w, row, i / w.group);
    VF weight[kVectors];
    unpack<F>(from + i * F::kBits / 8, step, weight);
    for (size_t v = 0; v < kHalf; ++v) {
      hn::StoreU(weight[v], kF, place.to + v * kLanes);
      hn::StoreU(weight[kHalf + v], kF, place.to + place.other + v * kLanes);
    }
  }
}

/// A row of x, the floats of each chain next to each other.
HWY_INLINE void split_row(const float* from, int64_t depth, float* to) {
  for (int64_t i = 0; i < depth; i += kBlock, to += kBlock / 2) {
    for (size_t v = 0; v < kHalf; ++v) {
      hn::StoreU(hn::LoadU(kF, from + i + v * kLanes), kF, to + v * kLanes);
      hn::StoreU(hn::LoadU(kF, from + i + (kHalf + v) * kLanes), kF, to + kChain + v * kLanes);
    }
  }
}

/// The chains of kM rows of x with kN rows of weights go on over `depth`, one of the two of each result after
/// the other, so that tiles are larger. sums [kM][kColumns][2][lanes].
template <int kM, int kN>
HWY_INLINE void add_products(const float* x, const float* weights, int64_t depth, float* sums) {
  for (int h = 0; h < 2; ++h, x += kChain, weights += kChain, sums += kLanes) {
    VF sum[kM][kN];
    const auto at = [&](int m, int n) { return sums + static_cast<size_t>((m * kColumns + n) * 2) * kLanes; };
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) sum[m][n] = hn::LoadU(kF, at(m, n));
    }
    for (int64_t i = 0; i < depth / 2; i += static_cast<int64_t>(kLanes)) {
      VF in[kM];
      for (int m = 0; m < kM; ++m) in[m] = hn::LoadU(kF, x + m * 2 * kChain + i);
      for (int n = 0; n < kN; ++n) {
        const VF weight = hn::LoadU(kF, weights + n * 2 * kChain + i);
        for (int m = 0; m < kM; ++m) sum[m][n] = hn::MulAdd(weight, in[m], sum[m][n]);
      }
    }
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < kN; ++n) hn::StoreU(sum[m][n], kF, at(m, n));
    }
  }
}

/// The same of a few rows of x, k floats apart, where they lie: copying them would take longer. Both chains
/// at once.
template <int kM, int kN>
HWY_INLINE void add_few_products(const float* x, int64_t k, const float* weights, int64_t depth,
                                 float* sums) {
  VF sum[kM][kN][2];
  const auto at = [&](int m, int n, int h) {
    return sums + static_cast<size_t>((m * kFewColumns + n) * 2 + h) * kLanes;
  };
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      for (int h = 0; h < 2; ++h) sum[m][n][h] = hn::LoadU(kF, at(m, n, h));
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
      for (int h = 0; h < 2; ++h) hn::StoreU(sum[m][n][h], kF, at(m, n, h));
    }
  }
}

/// Sums of the chains [count][columns][2][lanes], `each` floats from row to row, to y.
HWY_INLINE void store_totals(const WeightRowsCall& call, const float* sums, int64_t each, const Corner& c) {
  for (int64_t m = 0; m < c.rows; ++m) {
    float* y = call.y + (c.first + m) * call.weights.n + c.column;
    for (int64_t n = 0; n < c.columns; ++n) {
      const float* chains = sums + m * each + n * 2 * static_cast<int64_t>(kLanes);
      y[n] = total(hn::LoadU(kF, chains), hn::LoadU(kF, chains + kLanes));
    }
  }
}

/// Up to kFewRows rows and kFewColumns columns of y.
template <class F>
HWY_NOINLINE void few_rows(const WeightRowsCall& call, const Corner& c) {
  constexpr int64_t kEach = kFewColumns * 2 * static_cast<int64_t>(kLanes), kColumn = kEach / kFewColumns;
  const WeightRows& w = call.weights;
  HWY_ALIGN float weights[kFewColumns * kDepth];
  HWY_ALIGN float sums[kFewRows * kEach] = {};
  for (int64_t at = 0; at < w.k; at += kDepth) {
    const int64_t depth = std::min(kDepth, w.k - at);
    for (int64_t n = 0; n < c.columns; ++n)
      unpack_row<F>(w, c.column + n, at, depth, together(weights + n * kDepth));
    const float* x = call.x + c.first * w.k + at;
    const auto products = [&](auto wide, int64_t n) {
      int64_t m = 0;
      float* to = sums + n * kColumn;
      const float* from = weights + n * kDepth;
      for (; m + 2 <= c.rows; m += 2)
        add_few_products<2, wide>(x + m * w.k, w.k, from, depth, to + m * kEach);
      if (m < c.rows) add_few_products<1, wide>(x + m * w.k, w.k, from, depth, to + m * kEach);
    };
    if (c.columns == kFewColumns) {
      products(std::integral_constant<int, kFewColumns>(), 0);
    } else {
      for (int64_t n = 0; n < c.columns; ++n) products(std::integral_constant<int, 1>(), n);
    }
  }
  store_totals(call, sums, kEach, c);
}

/// Up to kRows rows and kColumns columns of y. Not inlined: its memory would be touched for a single row too.
template <class F>
HWY_NOINLINE void many_rows(const WeightRowsCall& call, const Corner& c) {
  constexpr int kN = 4, kM = kLanes == 16 ? 6 : 3;  // as many sums as registers hold
  constexpr int64_t kEach = kColumns * 2 * static_cast<int64_t>(kLanes), kColumn = kEach / kColumns;
  const WeightRows& w = call.weights;
  HWY_ALIGN float weights[kColumns * 2 * kChain];
  HWY_ALIGN float inputs[kRows * 2 * kChain];
  HWY_ALIGN float sums[kRows * kEach];
  for (int64_t m = 0; m < c.rows; ++m) std::fill_n(sums + m * kEach, c.columns * kColumn, 0.0f);
  for (int64_t at = 0; at < w.k; at += kDepth) {
    const int64_t depth = std::min(kDepth, w.k - at);
    for (int64_t n = 0; n < c.columns; ++n)
      unpack_row<F>(w, c.column + n, at, depth, apart(weights + n * 2 * kChain));
    for (int64_t m = 0; m < c.rows; ++m)
      split_row(call.x + (c.first + m) * w.k + at, depth, inputs + m * 2 * kChain);
    // A few rows of x stay in the first-level cache while all weights pass by.
    const auto products = [&](auto rows, int64_t m) {
      const float* x = inputs + m * 2 * kChain;
      float* to = sums + m * kEach;
      int64_t n = 0;
      for (; n + kN <= c.columns; n += kN)
        add_products<rows, kN>(x, weights + n * 2 * kChain, depth, to + n * kColumn);
      for (; n < c.columns; ++n) add_products<rows, 1>(x, weights + n * 2 * kChain, depth, to + n * kColumn);
    };
    int64_t m = 0;
    for (; m + kM <= c.rows; m += kM) products(std::integral_constant<int, kM>(), m);
    for (; m + 2 <= c.rows; m += 2) products(std::integral_constant<int, 2>(), m);
    if (m < c.rows) products(std::integral_constant<int, 1>(), m);
  }
  store_totals(call, sums, kEach, c);
}

template <class F>
HWY_INLINE void range_of(const WeightRowsCall& call, int64_t begin, int64_t end) {
  int64_t row = begin;
  if (call.m == 1) {
    for (; row + 4 <= end; row += 4) stream_rows<F, 4>(call.weights, row, call.x, call.y + row);
    for (; row < end; ++row) stream_rows<F, 1>(call.weights, row, call.x, call.y + row);
  }
  const bool few = call.m <= kFewRows;
  const int64_t most_rows = few ? kFewRows : kRows, most_columns = few ? kFewColumns : kColumns;
  for (; row < end; row += most_columns) {
    for (int64_t m = 0; m < call.m; m += most_rows) {
      const Corner c = {row, std::min(most_columns, end - row), m, std::min(most_rows, call.m - m)};
      few ? few_rows<F>(call, c) : many_rows<F>(call, c);
    }
  }
  if (call.bias == nullptr) return;
  for (int64_t m = 0; m < call.m; ++m) {
    for (int64_t n = begin; n < end; ++n) call.y[m * call.weights.n + n] += call.bias[n];
  }
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

/// Four columns at a time that make a task: some ten thousand bytes of weights, or as many multiply-adds, and
/// as many columns as meet the same rows of x where these are many.
int64_t fours_of(const WeightRows& w, int64_t m) {
  constexpr int64_t kManyRows = 16, kFoursOfMany = 8;
  if (m >= kManyRows) return kFoursOfMany;
  const int64_t work = w.k * std::max<int64_t>(1, m);
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
