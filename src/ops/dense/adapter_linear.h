// Operands of adapter_linear.
#pragma once

#include <cstdint>

#include "ir/schema.h"

namespace trireme::ops {

/// Extents of a node, whose shapes are static. Operands: y, x, slots, ranks, a, b.
struct AdapterPlan {
  int64_t rows = 0, in = 0, out = 0, slots = 0, rank = 0;
};
AdapterPlan plan_adapter(const ir::NodeView& node);

}  // namespace trireme::ops
