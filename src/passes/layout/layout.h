// Channels-last networks: convolutions and pools read and write [n,h,w,c], and transposes between them
// vanish.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites f32 convolutions whose weights have known extents, and pools, as transpose -> channels-last
/// operator
/// -> transpose. Pools of lines and blocks, beside convolutions of as many axes, become those of images
/// between views. sink_transposes then cancels the transposes between two of them.
size_t use_channels_last(ir::Graph& graph);

/// Moves transposes from channels-last behind elementwise operators, concatenations, pads, reductions and
/// group norms, until they cancel the transposes before the next layer. Replaces those that only move extents
/// of 1 by reshapes.
size_t sink_transposes(ir::Graph& graph);

/// Lets a convolution read the model's channels-first input directly: it changes the layout while it gathers
/// windows.
size_t absorb_input_layout(ir::Graph& graph);

}  // namespace trireme::passes
