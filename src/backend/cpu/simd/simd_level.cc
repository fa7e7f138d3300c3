// Asks Highway's dispatcher for the levels it compiled and lets a test pin one of them.
#include "backend/cpu/simd/simd_level.h"

#include "backend/cpu/simd/simd_targets.h"
#include "hwy/highway.h"

namespace trireme::cpu {

std::vector<SimdLevel> simd_levels() {
  std::vector<SimdLevel> levels;
  // A lower bit is a better level, so walking upwards lists the best first.
  const int64_t runnable = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t rest = runnable; rest != 0; rest &= rest - 1) {
    const int64_t bit = rest & -rest;
    levels.push_back({bit, hwy::TargetName(bit)});
  }
  return levels;
}

void simd_ready() {
  hwy::ChosenTarget& chosen = hwy::GetChosenTarget();
  if (!chosen.IsInitialized()) chosen.Update(hwy::SupportedTargets());
}

void simd_force(const SimdLevel& level) {
  hwy::SetSupportedTargetsForTest(level.mask);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void simd_unforce() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace trireme::cpu
