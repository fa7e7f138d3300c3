// Requirements on the types and shapes of operands that the type rules of operators do not check.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// Checks the operator's row of the table of operand rules, if it has one, before its type rule. Kernels rely
/// on these rows: they would read past the end of a bias without one value per channel, or of indices of
/// another width. Extents that are not known yet are checked again once they are.
void guard_operands(ir::OpSchema& op);

}  // namespace trireme::ops
