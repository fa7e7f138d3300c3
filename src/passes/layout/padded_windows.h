// Padding that stands before convolutions and pools as a node of its own.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// conv(pad(x)) of zeros along spatial axes -> conv with larger pads; average_pool(pad(x)) of zeros -> one
/// that counts its padding; a pad of nothing -> x. TensorFlow's padding on one side, as it and its ports to
/// PyTorch write it.
size_t absorb_padding(ir::Graph& graph);

}  // namespace trireme::passes
