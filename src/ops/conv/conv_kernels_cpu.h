// Kernels of convolutions on CPU that stand in files of their own, for the lists of conv_nhwc and
// conv_transpose.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

/// conv_nhwc on weights that are computed or change every step: packed inside the run.
std::vector<ir::Kernel> conv_nhwc_live_kernels();

/// conv_nhwc of three spatial axes, x [n, d, h, w, c], with constant weights and with those that change every
/// step: results are summed tap by tap in depth, each tap a convolution of whole slices by the
/// two-dimensional kernels (depthwise, Winograd or an implicit product). Packed weights are those of kd
/// convolutions of slices; the workspace is that of one block of slices and as many floats as their results
/// have.
std::vector<ir::Kernel> conv_depth_kernels();

/// conv_transpose of one to three spatial axes, f32, any stride, padding and groups, dilated in depth at
/// most: each phase of the result's pixels is a convolution of stride 1 over x, and windows in depth sum
/// those of slices, with constant weights. Source: the gradient of strided convolution, Dumoulin & Visin
/// 2016, ch. 4.
ir::Kernel conv_transpose_phases();

}  // namespace trireme::ops
