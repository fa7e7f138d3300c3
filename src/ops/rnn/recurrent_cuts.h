// What of recurrent layers ranks may split: the batch.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::CutRule recurrent_cut(const ir::NodeView& node);
ir::CutRule recurrent_grad_cut(const ir::NodeView& node);

}  // namespace trireme::ops
