// Operand places and attribute names of separable_conv_nhwc, for its schema, its kernels and the pass that
// makes it.
#pragma once

#include "ops/dense/activation.h"

namespace trireme::ops {

/// Operands; those behind the third may be absent.
enum SeparableOperand : size_t {
  kSeparableX,
  kSeparableDepthwise,
  kSeparableProject,
  kSeparableDepthwiseBias,
  kSeparableProjectBias,
  kSeparableExpand,
  kSeparableExpandBias,
  kSeparableResidual,
  kSeparableOperands
};

/// The attributes of an activation, without and with a stage's prefix ("expand_", "depthwise_").
ir::Attrs stage_activation(const ir::Attrs& attrs, const std::string& prefix);
void set_stage_activation(ir::Attrs& attrs, const std::string& prefix, const ir::Attrs& stage);

}  // namespace trireme::ops
