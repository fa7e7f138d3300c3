// What operators ask of the types and shapes of their operands beyond what their shape rules read of them.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// Puts the operator's row of the table of operand rules, if it has one, before its type rule. Kernels rely
/// on what the rows say: a bias of other than one value per channel, or indices of another width, would be
/// read past their end. Extents that are not known yet are looked at again when they are.
void guard_operands(ir::OpSchema& op);

}  // namespace trireme::ops
