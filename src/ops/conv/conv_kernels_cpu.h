// Kernels of convolutions on CPU that stand in files of their own, for the lists of conv_nhwc, conv_integer
// and conv_transpose.
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

/// conv_transpose of one to three spatial axes, f32, any padding and groups, strides of at most 4096 phases,
/// dilated in depth at most: each phase of the result's pixels is a convolution of stride 1 over x, and
/// windows in depth sum those of slices, with constant weights. Source: the gradient of strided convolution,
/// Dumoulin & Visin 2016, ch. 4.
ir::Kernel conv_transpose_phases();

/// Every kernel of the channels-last operators, in the order in which they are tried.
std::vector<ir::Kernel> conv_nhwc_cpu_kernels();
std::vector<ir::Kernel> conv_nhwc_grad_w_cpu_kernels();

/// conv and conv_grad_w, one to three spatial axes, f32, by the kernels above on channels-last copies: what a
/// transposed convolution is differentiated to. Workspace: the copies and the kernel's own.
ir::Kernel conv_channels_last();
ir::Kernel conv_grad_w_channels_last();

/// conv_integer: small groups from planes of bytes (one or two spatial axes), then packed constant weights of
/// any window and group on channels-last copies, where taps in depth become channels. Sums are exact.
std::vector<ir::Kernel> conv_integer_fast_kernels();

}  // namespace trireme::ops
