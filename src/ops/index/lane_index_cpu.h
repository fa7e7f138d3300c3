// gather_elements and scatter_elements by lanes: what an index reads or writes lies in its own lane along the
// axis, so lanes go over the team, and runs of indices become runs of offsets.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

ir::Kernel gather_lanes_kernel();
/// Updates of a lane are joined in operand order, so repeated indices give what the plain loops give.
ir::Kernel scatter_lanes_kernel();

}  // namespace trireme::ops
