// From an inference graph to a training graph: training forms of ops, and the gradients of the loss.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// Names of the inputs that training adds; the trainer feeds them every step.
inline constexpr const char* kRngInput = "rng";                 ///< i64 [3]: seed, step, first row
inline constexpr const char* kLossWeightInput = "loss_weight";  ///< f32 []: 1 / valid targets of the step
inline constexpr const char* kLrInput = "lr";                   ///< f32 []: learning rate
inline constexpr const char* kStepInput = "step";               ///< i64 []: count of executed updates, from 1

inline constexpr const char* kCountInput = "micro_batch";  ///< i64 []: micro-batches of the step before this

inline constexpr const char* kGradScaleInput = "grad_scale";  ///< f32 []: 1 / loss scale

/// The name of value i of those that cross from pipeline part b to the next.
std::string crossing_name(size_t b, size_t i);
/// The name of the gradient of a crossing value.
std::string crossing_gradient(const std::string& value);
/// True for the name of an input that brings such a gradient.
bool is_crossing_gradient(std::string_view name);

/// The input `name` of the graph, added if it has none.
ir::ValueId need_input(ir::Graph& graph, const std::string& name, tensor::TensorType type);

/// Training forms: dropout draws from the `rng` input, batch_norm takes the statistics of the batch and keeps
/// running ones in its mean and variance where these are states by now. Run before shapes are bound.
size_t to_training(ir::Graph& graph);

/// Makes the masks of micro-batches disjoint: tells each dropout_train whose first extent is not the batch
/// how many rows its micro-batch has, by which it numbers its elements. Run when shapes are bound and before
/// differentiate(), whose dropouts draw the same masks. `batch_rows`: of the graph's first input.
void number_masks(ir::Graph& graph, int64_t batch_rows);

/// The gradient of one parameter.
struct ParamGradient {
  ir::ValueId param, gradient;
  /// What the optimizer changes where it is not `param` itself: this rank's part of it. Of the type of
  /// `gradient`, whose Value::shard says which part.
  ir::ValueId target = ir::kNoValue;
  bool is_counted = true;  ///< false: another pipeline stage has this parameter too and counts it in the norm
};

/// The loss as a scalar: one element of a higher rank is squeezed, and the scalar takes its place among the
/// outputs. Throws invalid_argument for a loss of several elements.
ir::ValueId scalar_loss(ir::Graph& graph, ir::ValueId loss);

/// Adds the gradients of scalar_loss() times the input `loss_weight` with respect to `params` (values of kind
/// state). A parameter the loss does not depend on is left out. Throws unsupported naming the node that has
/// no gradient, or an operand or result whose extents do not follow from the shapes of the inputs.
std::vector<ParamGradient> differentiate(ir::Graph& graph, ir::ValueId loss,
                                         const std::vector<ir::ValueId>& params);

}  // namespace trireme::passes
