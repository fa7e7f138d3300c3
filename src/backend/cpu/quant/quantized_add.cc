// The sum of two 8-bit tensors: widens to f32 lanes, two multiply-adds, rounds, clamps, narrows.
#include "backend/cpu/quant/quantized_add.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/quant/quantized_add.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE void add_run(const QuantizedAdd& g, int64_t begin, int64_t end) {
  const T* a = static_cast<const T*>(g.a);
  const T* b = static_cast<const T*>(g.b);
  T* y = static_cast<T*>(g.y);
  const hn::Rebind<T, F32> narrow;
  const hn::Rebind<int32_t, F32> wide;
  const VF fa = set(g.a_factor), fb = set(g.b_factor), shift = set(g.shift);
  const VF lowest = set(g.lowest), highest = set(g.highest);
  int64_t i = begin;
  for (; i + static_cast<int64_t>(kLanes) <= end; i += static_cast<int64_t>(kLanes)) {
    const VF va = hn::ConvertTo(kF, hn::PromoteTo(wide, hn::LoadU(narrow, a + i)));
    const VF vb = hn::ConvertTo(kF, hn::PromoteTo(wide, hn::LoadU(narrow, b + i)));
    const VF sum = hn::MulAdd(vb, fb, hn::MulAdd(va, fa, shift));
    const VI q = hn::NearestInt(hn::Min(hn::Max(sum, lowest), highest));
    hn::StoreU(hn::DemoteTo(narrow, q), narrow, y + i);
  }
  for (; i < end; ++i) {
    const float sum = std::fma(static_cast<float>(b[i]), g.b_factor,
                               std::fma(static_cast<float>(a[i]), g.a_factor, g.shift));
    y[i] = static_cast<T>(std::nearbyint(std::min(std::max(sum, g.lowest), g.highest)));
  }
}

void add_u8(const QuantizedAdd& g, int64_t begin, int64_t end) { add_run<uint8_t>(g, begin, end); }
void add_i8(const QuantizedAdd& g, int64_t begin, int64_t end) { add_run<int8_t>(g, begin, end); }

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(add_u8);
HWY_EXPORT(add_i8);

void quantized_add(const QuantizedAdd& args, base::ThreadPool& pool) {
  const auto run = args.is_signed ? HWY_DYNAMIC_DISPATCH(add_i8) : HWY_DYNAMIC_DISPATCH(add_u8);
  pool.for_range(args.n, 8192, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

}  // namespace trireme::cpu
#endif
