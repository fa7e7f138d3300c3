// What the gradient rules of the convolutions share: windows as explicit attributes.
#pragma once

#include "ops/conv/window.h"
#include "ops/grad.h"

namespace trireme::ops {

/// strides, dilations, pads and group of a resolved window over `rank` spatial axes, without auto_pad. With
/// `exact` the padding at the end is what the result extents need, so that walking the window backwards
/// arrives at the operand's extents: it shrinks, below zero if need be, where the last inputs are never read.
ir::Attrs explicit_window(const Window& window, size_t rank, int64_t group, bool exact);

/// The window that `node` attributes describe over operand x and weights [.., .., kernel...], spatial extents
/// from axis 2 on.
Window window_of(const ir::Attrs& attrs, const tensor::Dims& x, const tensor::Dims& w);

/// 2 flop for every multiply-add: each element of `dy` meets `taps` weights.
ir::Cost conv_grad_cost(const ir::NodeView& node, double taps, size_t dy);

/// The rules of conv and conv_transpose, stated in conv_grad.cc.
Gradients conv_gradients(GradBuilder& g);
Gradients conv_transpose_gradients(GradBuilder& g);
/// The rule of conv_nhwc: gradients by conv_nhwc_grad_x and conv_nhwc_grad_w.
Gradients conv_nhwc_gradients(GradBuilder& g);

}  // namespace trireme::ops
