// What of losses ranks may split: rows, whose sums are then partial, and the classes of the gradient; which
// scores are of classes, and the type of their statistics.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

/// Scores of a row that are of classes: all but the last, attribute `padded`.
int64_t class_scores(const ir::NodeView& node);
/// Throws invalid_argument where no class is left.
void require_padding(const ir::NodeView& node);

/// The type of a row's statistics: largest score and sums of exponentials.
inline tensor::DType statistics_of(tensor::DType scores) {
  return scores == tensor::DType::f64 ? tensor::DType::f64 : tensor::DType::f32;
}

ir::CutRule cross_entropy_cut(const ir::NodeView& node);
ir::CutRule cross_entropy_grad_cut(const ir::NodeView& node);
/// Tells a part of the classes where it begins and how many there are in all.
void localise_cross_entropy_grad(ir::LocalNode& node);
/// nll_loss, softmax_cross_entropy_loss.
ir::CutRule class_loss_cut(const ir::NodeView& node);
ir::CutRule class_loss_grad_cut(const ir::NodeView& node);

}  // namespace trireme::ops
