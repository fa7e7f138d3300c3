// Samples a vector of points at a time: each tap is one gather, masked where it falls into the padding.
#include "backend/cpu/move/gather_points.h"

#include <algorithm>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/move/gather_points.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "backend/cpu/simd/simd_vector.inc"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace {

void gather_run(const GatherPoints& g) {
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  int64_t i = 0;
  for (; i + kStep <= g.points; i += kStep) {
    VF sum = hn::Zero(kF);
    for (int64_t k = 0; k < g.taps; ++k) {
      const VI index = hn::LoadU(kI, g.index + k * g.stride + i);
      const VI inside = hn::Max(index, hn::Zero(kI));
      const MF counts = hn::RebindMask(kF, hn::Eq(index, inside));
      const VF term = hn::Mul(hn::LoadU(kF, g.weight + k * g.stride + i), hn::GatherIndex(kF, g.x, inside));
      sum = hn::Add(sum, hn::IfThenElseZero(counts, term));
    }
    hn::StoreU(sum, kF, g.y + i);
  }
  for (; i < g.points; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < g.taps; ++k) {
      const int32_t at = g.index[k * g.stride + i];
      sum += at < 0 ? 0.0f : g.weight[k * g.stride + i] * g.x[at];
    }
    g.y[i] = sum;
  }
}

}  // namespace
}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(gather_run);

void gather_points(const GatherPoints& args) { HWY_DYNAMIC_DISPATCH(gather_run)(args); }

}  // namespace trireme::cpu
#endif
