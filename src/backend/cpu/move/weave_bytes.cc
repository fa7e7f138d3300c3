// Interleaves planes of bytes with the interleaving stores of each SIMD level.
#include "backend/cpu/move/weave_bytes.h"

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/move/weave_bytes.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void weave3(const uint8_t* x, int64_t plane, uint8_t* y, int64_t pixels) {
  const hn::ScalableTag<uint8_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pixels; i += lanes) {
    hn::StoreInterleaved3(hn::LoadU(d, x + i), hn::LoadU(d, x + plane + i), hn::LoadU(d, x + 2 * plane + i),
                          d, y + 3 * i);
  }
  for (; i < pixels; ++i) {
    for (int64_t c = 0; c < 3; ++c) y[3 * i + c] = x[c * plane + i];
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(weave3);

void weave_bytes3(const uint8_t* x, int64_t plane, uint8_t* y, int64_t pixels) {
  HWY_DYNAMIC_DISPATCH(weave3)(x, plane, y, pixels);
}

}  // namespace trireme::cpu
#endif
