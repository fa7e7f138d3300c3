// identity on CPU: nothing runs, because the compiler lets the result share the operand's memory.
#include "ops/table.h"

namespace trireme::ops {

std::vector<ir::Kernel> identity_cpu_kernels() { return {}; }

}  // namespace trireme::ops
