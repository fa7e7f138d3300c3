// Schemas of attention with channels last, whole and packed, and of its backward passes.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

struct AttentionPlan;

ir::OpSchema attention_bsnd_schema();
ir::OpSchema attention_qkv_schema();
ir::OpSchema attention_bsnd_grad_schema();
ir::OpSchema attention_qkv_grad_schema();
/// They with one more result: the gradient of the scores, which is that of a mask before it was broadcast.
ir::OpSchema attention_bsnd_mask_grad_schema();
ir::OpSchema attention_qkv_mask_grad_schema();

/// Gradients of the two forms: y and its log-sum-exp are kept, probabilities are computed again.
ir::GradFn attention_bsnd_gradient();
ir::GradFn attention_qkv_gradient();

/// Attributes that both forms share.
std::vector<ir::AttrSpec> attention_attrs();

/// `products` products of a visible score with one head's channels, `other` flop per score beside them;
/// operands and results once. Scores that causality hides are not counted.
ir::Cost attention_cost(const ir::NodeView& node, const AttentionPlan& plan, double products, double other);

}  // namespace trireme::ops
