// conv_transpose by products: the kernel before the reference one.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

/// 2-D, f32, any stride, padding and groups, without dilation: each phase of the result's pixels is a
/// convolution of stride 1 over x. Source: the gradient of strided convolution, Dumoulin & Visin 2016, ch. 4.
ir::Kernel conv_transpose_phases();

}  // namespace trireme::ops
