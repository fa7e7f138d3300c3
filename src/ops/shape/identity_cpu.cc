// identity on CPU: nothing to run, the compiler aliases the result with the operand.
#include "ops/table.h"

namespace trireme::ops {

std::vector<ir::Kernel> identity_cpu_kernels() { return {}; }

}  // namespace trireme::ops
