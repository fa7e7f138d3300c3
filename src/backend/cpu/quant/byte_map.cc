// Maps bytes through a table: the low half of a byte indexes sixteen rows, the high half selects one of them.
#include "backend/cpu/quant/byte_map.h"

#include "backend/cpu/simd/simd_level.h"
#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quant/byte_map.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
using U8 = hn::ScalableTag<uint8_t>;
using VU8 = hn::Vec<U8>;
using MU8 = hn::Mask<U8>;
constexpr U8 kU8;

/// Looks `low` up in rows [first, first + N) of the table and selects by the bits of the row number.
template <int N>
HWY_INLINE VU8 choose(const uint8_t* table, int first, VU8 low, const MU8* bits) {
  if constexpr (N == 1) {
    return hn::TableLookupBytes(hn::LoadDup128(kU8, table + first * 16), low);
  } else {
    constexpr int kLog = N == 16 ? 3 : N == 8 ? 2 : N == 4 ? 1 : 0;
    const VU8 zeros = choose<N / 2>(table, first, low, bits);
    return hn::IfThenElse(bits[kLog], choose<N / 2>(table, first + N / 2, low, bits), zeros);
  }
}
#endif

void byte_run(const uint8_t* table, const uint8_t* x, uint8_t* y, int64_t n) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(kU8));
  for (; i + lanes <= n; i += lanes) {
    const VU8 v = hn::LoadU(kU8, x + i);
    MU8 bits[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) bits[b] = hn::TestBit(v, hn::Set(kU8, static_cast<uint8_t>(16 << b)));
    const VU8 low = hn::And(v, hn::Set(kU8, uint8_t{15}));
    hn::StoreU(choose<16>(table, 0, low, bits), kU8, y + i);
  }
#endif
  for (; i < n; ++i) y[i] = table[x[i]];
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(byte_run);

void map_bytes(const ByteTable& table, const uint8_t* x, uint8_t* y, int64_t n, base::ThreadPool& pool) {
  simd_ready();
  const auto run = HWY_DYNAMIC_DISPATCH(byte_run);
  pool.for_range(n, 32768,
                 [&](int64_t begin, int64_t end) { run(table.data(), x + begin, y + begin, end - begin); });
}

}  // namespace trireme::cpu
#endif
