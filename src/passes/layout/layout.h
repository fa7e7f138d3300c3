// Channels-last networks: convolutions and pools read and write [n,h,w,c], and transposes between them
// vanish.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites f32 convolutions with weights of known extents, and pools, as transpose -> channels-last op ->
/// transpose; pools of lines and blocks, beside convolutions of as many axes, as those of images between
/// views. sink_transposes then cancels what stands between two of them.
size_t use_channels_last(ir::Graph& graph);

/// Moves transposes from channels-last below elementwise ops, concatenations, pads, reductions and group
/// norms, where they meet and cancel the transposes of the next layer. Turns those that only move extents of
/// 1 into reshapes.
size_t sink_transposes(ir::Graph& graph);

/// Lets a convolution read the model's own channels-first input: the layout change rides on its gathering.
size_t absorb_input_layout(ir::Graph& graph);

}  // namespace trireme::passes
