// Operands of row_linear: products of few rows with what stands before and behind them.
#pragma once

#include <vector>

#include "ir/kernel.h"
#include "ops/dense/activation.h"

namespace trireme::ops {

/// Operands before those of the weights, of which each has four.
enum RowLinearOperand : size_t { kRlX, kRlNorm, kRlResidual, kRlWeights };
enum RowLinearWeightOperand : size_t { kRlWeight, kRlScale, kRlZero, kRlBias, kRlPerWeight };
/// Number of an operand of weight `i`.
constexpr size_t row_linear_operand(size_t i, RowLinearWeightOperand which) {
  return kRlWeights + i * kRlPerWeight + which;
}

/// Extents of a node whose shapes are static.
struct RowLinearPlan {
  int64_t rows = 0, k = 0;
  std::vector<int64_t> n;  ///< of each weight
  int bits = 0;            ///< of stored weights; 0: floats of x's type
  int64_t group = 0;
  bool gated = false;  ///< act(x w_0') (x w_1') is the one result
  float epsilon = 0;   ///< of the norm
  ActivationSpec act;
};
RowLinearPlan plan_row_linear(const ir::NodeView& node);

}  // namespace trireme::ops
