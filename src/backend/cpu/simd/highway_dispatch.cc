// The functions of Highway's library that its dispatch by instruction-set level calls. The library itself
// measures the clock for 4 ms when it is loaded, in each process, so only its headers are used.
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "backend/cpu/simd/simd_targets.h"
#include "hwy/highway.h"

namespace hwy {
namespace {

std::atomic<int64_t> targets_of_test{0};  // 0: those of the processor

/// The levels that kernels are compiled for (simd_targets.h) and this processor and system have.
int64_t targets_of_processor() {
  int64_t targets = HWY_STATIC_TARGET | HWY_ENABLED_BASELINE;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, basic = 0, extended = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &basic, &d) == 0 || __get_cpuid(0x80000001, &a, &b, &extended, &d) == 0)
    return targets;
  // What of AVX the system saves is checked by the built-in function.
  const bool has_f16c = (basic & bit_F16C) != 0, has_lzcnt = (extended & bit_LZCNT) != 0;
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c &&
                        has_lzcnt;
  if (has_avx2) targets |= HWY_AVX2;
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd"))
    targets |= HWY_AVX3;
#endif
  return targets;
}

}  // namespace

int64_t SupportedTargets() {
  const int64_t forced = targets_of_test.load(std::memory_order_relaxed);
  if (forced != 0) return forced;
  static const int64_t found = targets_of_processor();
  return found;
}

void SetSupportedTargetsForTest(int64_t targets) { targets_of_test.store(targets); }

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

/// Called by Highway's own checks, which debug builds have.
void Abort(const char* file, int line, const char* format, ...) {
  std::va_list args;
  va_start(args, format);
  std::fprintf(stderr, "%s:%d: ", file, line);
  std::vfprintf(stderr, format, args);
  std::fputc('\n', stderr);
  va_end(args);
  std::abort();
}

}  // namespace hwy
