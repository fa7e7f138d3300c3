// The kernel of conv_nhwc for three spatial axes with constant weights.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

/// x [n, d, h, w, c]: results are summed tap by tap in depth, each tap a convolution of whole slices by the
/// fast two-dimensional kernels (depthwise, Winograd or an implicit product). Packed weights are those of kd
/// convolutions of slices; the workspace is one slice's.
ir::Kernel conv_depth_kernel();

}  // namespace trireme::ops
