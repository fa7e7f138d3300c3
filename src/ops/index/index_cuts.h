// Cut rules of lookups by index.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::CutRule gather_elements_cut(const ir::NodeView& node);
ir::CutRule gather_nd_cut(const ir::NodeView& node);
/// scatter and scatter_elements.
ir::CutRule scatter_elements_cut(const ir::NodeView& node);
ir::CutRule scatter_nd_cut(const ir::NodeView& node);

}  // namespace trireme::ops
