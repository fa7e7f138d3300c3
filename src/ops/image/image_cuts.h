// What of image sampling ranks may split: images, channels, points of a grid.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// resize, upsample: images and channels whose places stay what they are, which the extents alone do not
/// show.
ir::CutRule resize_cut(const ir::NodeView& node);
ir::CutRule resize_grad_cut(const ir::NodeView& node);
ir::CutRule grid_sample_cut(const ir::NodeView& node);
ir::CutRule grid_sample_grad_x_cut(const ir::NodeView& node);
ir::CutRule grid_sample_grad_grid_cut(const ir::NodeView& node);

}  // namespace trireme::ops
