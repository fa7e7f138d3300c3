// The geometry of transposed convolution: which padding and result extents its attributes ask for.
#pragma once

#include "ops/conv/window.h"

namespace trireme::ops {

/// Result shape [n, oc, spatial...] for weights [c, oc / group, kernel...].
tensor::Shape infer_conv_transpose_shape(const ir::Attrs& attrs, const tensor::Shape& x,
                                         const tensor::Shape& w);

/// The window walked backwards: `in` and `out` are the extents of the operand and of the result; input i
/// feeds result i * stride - pad_begin + k * dilation.
Window transpose_window(const ir::Attrs& attrs, const tensor::Dims& kernel, const tensor::Dims& in);

}  // namespace trireme::ops
