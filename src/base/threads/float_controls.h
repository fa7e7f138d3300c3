// How the calling thread computes with floats: the control bits of its vector unit.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace trireme::base {

/// Rounding, masks and the treatment of subnormal numbers; 0 on processors where nothing of it is set here.
inline uint32_t float_controls() {
#if defined(__x86_64__)
  constexpr uint32_t kControls = 0xffc0;  // the bits below tell what happened so far
  return _mm_getcsr() & kControls;
#else
  return 0;
#endif
}
inline void set_float_controls(uint32_t controls) {
#if defined(__x86_64__)
  if (controls != float_controls()) _mm_setcsr(controls);
#else
  (void)controls;
#endif
}

/// While it lives, subnormal numbers count as zero in the calling thread, and results in their range become
/// zero. Intel's cores take some hundred cycles for an operation that meets such a number.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : before_(float_controls()) {
    constexpr uint32_t kFlushResults = 0x8000, kFlushOperands = 0x0040;
    set_float_controls(before_ | kFlushResults | kFlushOperands);
  }
  ~SubnormalsAreZero() { set_float_controls(before_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  uint32_t before_;
};

}  // namespace trireme::base
