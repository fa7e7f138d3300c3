// What of normalisations ranks may split: what is not part of a statistic.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::CutRule batch_norm_cut(const ir::NodeView& node);
ir::CutRule batch_norm_train_cut(const ir::NodeView& node);
ir::CutRule batch_norm_grad_cut(const ir::NodeView& node);
/// instance_norm, group_norm: images, and channels in whole groups.
ir::CutRule group_norm_cut(const ir::NodeView& node);
void localise_group_norm(ir::LocalNode& node);
/// The same of channels-last images.
ir::CutRule group_norm_nhwc_cut(const ir::NodeView& node);
void localise_group_norm_nhwc(ir::LocalNode& node);
/// layer_norm, rms_norm: the axes before `axis`.
ir::CutRule row_norm_cut(const ir::NodeView& node);
ir::CutRule row_norm_grad_cut(const ir::NodeView& node);
ir::CutRule add_layer_norm_cut(const ir::NodeView& node);
ir::CutRule masked_mean_pool_cut(const ir::NodeView& node);
/// lp_norm, l2_normalize: all axes but the last, or but `axis`.
ir::CutRule lp_norm_cut(const ir::NodeView& node);
ir::CutRule mean_variance_cut(const ir::NodeView& node);
/// lrn and lrn_grad: all axes but the channels, which are neighbours of each other.
ir::CutRule lrn_cut(const ir::NodeView& node);

}  // namespace trireme::ops
