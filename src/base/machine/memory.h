// What the process holds of the machine's memory, as the kernel counts it.
#pragma once

#include <cstdint>

namespace trireme::base {

/// Resident bytes now and at most so far; 0 where the system does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();

/// Lets the peak start again from what is resident now; false where that is not allowed.
bool reset_peak_resident();

/// Bytes of memory this process may use: the machine's, or the control group's limit if that is less.
int64_t memory_limit_bytes();

}  // namespace trireme::base
