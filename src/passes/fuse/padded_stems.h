// Padding of the input channels of first convolutions, so that tensor cores can compute them.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// For 16-bit conv_nhwc with fewer than 8 input channels, and the gradient of its weight: pads images and
/// weight with channels of zeros to 8, because libraries compute 16-bit convolutions of 3 channels without
/// tensor cores, and cuts the weight's gradient to its own channels. No parameter, state or file changes its
/// shape. Grouped convolutions are left alone. Runs on the graph of a rank's training step, for devices.
/// Returns the number of nodes changed.
size_t pad_stems(ir::Graph& graph);

}  // namespace trireme::passes
