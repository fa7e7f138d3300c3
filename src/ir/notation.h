// What an operator's index notation says of single operands.
#pragma once

#include "ir/schema.h"

namespace trireme::ir {

/// Whether operand i has dimensions of its own under the "..." of the notation: it broadcasts with the others
/// of its kind. Others are read whole, or lend a type. Operands beyond the notation are as the last one.
bool spreads_over_results(const OpSchema& op, size_t operand);

}  // namespace trireme::ir
