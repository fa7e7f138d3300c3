// How the calling thread computes with floats: the control bits of its vector unit.
#pragma once

#include <cstdint>

namespace trireme::base {

/// Rounding, masks and the treatment of subnormal numbers; 0 on processors where nothing of it is set here.
uint32_t float_controls();
void set_float_controls(uint32_t controls);

/// While it lives, subnormal numbers count as zero in the calling thread, and results in their range become
/// zero. Intel's cores take some hundred cycles for an operation that meets such a number.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero();
  ~SubnormalsAreZero() { set_float_controls(before_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  uint32_t before_;
};

}  // namespace trireme::base
