// Cut rules of the ops that move elements, and how their attributes become those of a part.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::CutRule transpose_cut(const ir::NodeView& node);
ir::CutRule expand_cut(const ir::NodeView& node);
ir::CutRule tile_cut(const ir::NodeView& node);
/// Equal operands one after another are the sections of the result; equal pieces those of the operand.
ir::CutRule concat_cut(const ir::NodeView& node);
ir::CutRule split_cut(const ir::NodeView& node);
ir::CutRule slice_cut(const ir::NodeView& node);
ir::CutRule slice_grad_cut(const ir::NodeView& node);
/// depth_to_space and space_to_depth.
ir::CutRule blocks_cut(const ir::NodeView& node);

/// Views: runs of dimensions with equal products; the first one of a run carries the cut, or all its parts in
/// sections (a packed q, k, v).
ir::CutRule view_cut(const ir::NodeView& node);

/// view_cut of squeeze: without axes, a part might lose a dimension that the whole keeps.
ir::CutRule squeeze_cut(const ir::NodeView& node);

/// All but the last two dimensions.
ir::CutRule trilu_cut(const ir::NodeView& node);
ir::CutRule pad_cut(const ir::NodeView& node);
ir::CutRule center_crop_pad_cut(const ir::NodeView& node);
ir::CutRule reverse_sequence_cut(const ir::NodeView& node);
ir::CutRule one_hot_cut(const ir::NodeView& node);
/// A tensor of one number: every dimension is free.
ir::CutRule constant_of_shape_cut(const ir::NodeView& node);
/// col2im and im2col: batches and channels.
ir::CutRule columns_cut(const ir::NodeView& node);

/// The attribute `shape` becomes the extents of the part.
void localise_shape(ir::LocalNode& node);

}  // namespace trireme::ops
