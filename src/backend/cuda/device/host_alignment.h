// Accesses of kernels on the host that a GPU would refuse: addresses that their types do not allow.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::cuda {

/// The first access by this thread since the last call whose address is no multiple of what its type asks
/// for, in words; empty if there was none. A GPU ends a kernel with "misaligned address" there, the host's
/// processor does not mind: so kernels that run on the host are compiled with -fsanitize=alignment, in debug
/// builds and in the tests of this folder, whose checks report here. Builds under a sanitizer stop at the
/// access itself instead.
std::string take_misaligned_access();
/// False in builds under a sanitizer.
bool reports_misaligned_access();

}  // namespace trireme::cuda
