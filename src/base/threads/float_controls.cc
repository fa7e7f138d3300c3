// Reads and writes the control register of the vector unit.
#include "base/threads/float_controls.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace trireme::base {

uint32_t float_controls() {
#if defined(__x86_64__)
  constexpr uint32_t kControls = 0xffc0;  // the bits below tell what happened so far
  return _mm_getcsr() & kControls;
#else
  return 0;
#endif
}

void set_float_controls(uint32_t controls) {
#if defined(__x86_64__)
  if (controls != float_controls()) _mm_setcsr(controls);
#else
  (void)controls;
#endif
}

SubnormalsAreZero::SubnormalsAreZero() : before_(float_controls()) {
  constexpr uint32_t kFlushResults = 0x8000, kFlushOperands = 0x0040;
  set_float_controls(before_ | kFlushResults | kFlushOperands);
}

}  // namespace trireme::base
