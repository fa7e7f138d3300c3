// What of pooling ranks may split: images and channels.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// Pools over [n, c, spatial...], whole planes too, and their gradients.
ir::CutRule pool_cut(const ir::NodeView& node);
/// The same, linear in the operand.
ir::CutRule linear_pool_cut(const ir::NodeView& node);
/// Operands x, dy.
ir::CutRule max_pool_grad_cut(const ir::NodeView& node);
/// Over [n, h, w, c]; the linear ones; the gradient with operands x, dy.
ir::CutRule pool_nhwc_cut(const ir::NodeView& node);
ir::CutRule linear_pool_nhwc_cut(const ir::NodeView& node);
ir::CutRule max_pool_nhwc_grad_cut(const ir::NodeView& node);
/// Regions and channels: operands x, regions and, of roi_align, images.
ir::CutRule roi_cut(const ir::NodeView& node);
ir::CutRule roi_align_grad_cut(const ir::NodeView& node);

}  // namespace trireme::ops
