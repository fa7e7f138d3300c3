// Ops that name axes or list a number for each: a transpose before them moves behind, and the axes with it.
#pragma once

#include "passes/rewriter.h"

namespace trireme::passes {

/// op(transpose(x)) -> transpose(op(x)) for resize, slice, split, softmax and reductions that keep their
/// axes. False, and nothing changed, for any other node or one whose axes are not known.
bool sink_past_axes(Rewriter& rw, const ir::Node& node);

}  // namespace trireme::passes
