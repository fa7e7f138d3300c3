// First layers of convolution networks get as many input channels as tensor cores like.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// conv_nhwc of fewer than 8 channels in 16 bits, and the gradient of its weight: images and weight get
/// channels of zeros up to 8, for libraries run 16-bit convolutions of 3 channels without tensor cores; the
/// weight's gradient is cut to its own channels. No parameter, state or file changes its shape. Convolutions
/// in groups stay as they are. Run on the graph of a rank's step, for devices. Returns how many nodes it
/// changed.
size_t pad_stems(ir::Graph& graph);

}  // namespace trireme::passes
