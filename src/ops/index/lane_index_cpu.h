// gather_elements and scatter_elements by lanes: what an index reads or writes lies in its own lane along the
// axis, so lanes go over the team, and runs of indices become runs of offsets; scatter_nd by slices.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

/// How many indices, or tuples of them, become offsets at a time.
inline constexpr int64_t kOffsetRun = 256;

ir::Kernel gather_lanes_kernel();
/// Updates of a lane are joined in operand order, so repeated indices give what the plain loops give.
ir::Kernel scatter_lanes_kernel();

/// scatter_nd: index tuples become offsets in runs, then slices of one type join in a plain loop. Where
/// slices are wide, members of a team take the slices of a part of x each; repeated tuples join in operand
/// order whatever the team.
ir::Kernel scatter_slices_kernel();

}  // namespace trireme::ops
