// What of convolutions ranks may split: images, output channels, input channels (whose products are summed),
// groups.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::CutRule conv_cut(const ir::NodeView& node);
ir::CutRule conv_nhwc_cut(const ir::NodeView& node);
ir::CutRule conv_transpose_cut(const ir::NodeView& node);
ir::CutRule conv_grad_w_cut(const ir::NodeView& node);
ir::CutRule conv_nhwc_grad_x_cut(const ir::NodeView& node);
ir::CutRule conv_nhwc_grad_w_cut(const ir::NodeView& node);
ir::CutRule conv_integer_cut(const ir::NodeView& node);
ir::CutRule qlinear_conv_cut(const ir::NodeView& node);
ir::CutRule deform_conv_cut(const ir::NodeView& node);

/// A part of the channels of a grouped convolution has a part of the groups: weights are operand 1, or the
/// result.
void localise_conv(ir::LocalNode& node);
void localise_conv_grad_w(ir::LocalNode& node);

}  // namespace trireme::ops
