// The activation that fused products apply to their results: its attributes, its value, its form in plain
// ops.
#pragma once

#include "ir/graph.h"
#include "tensor/activation.h"

namespace trireme::ops {

using ActivationKind = tensor::Activation;

/// clip: [lo, hi]; leaky: alpha x below 0; hardsigmoid: clamp(alpha x + beta, 0, 1).
struct ActivationSpec {
  ActivationKind kind = ActivationKind::none;
  float lo = 0, hi = 6, alpha = 0.2f, beta = 0.5f;
  bool before_residual = false;
};

/// Reads the attributes activation, lo, hi, alpha, beta and act_before_residual. Throws invalid_argument for
/// an unknown name.
ActivationSpec activation_of(const ir::Attrs& attrs);

/// Those attributes, for schemas.
std::vector<ir::AttrSpec> activation_attrs();

/// The attributes under which a product ends with what a node computes of its operand 0: what may follow a
/// product in its kernel. nullopt where that is none of the activations, or depends on what a run computes.
std::optional<ir::Attrs> ending_of(std::string_view op, const ir::NodeView& node);

/// True if the activation is a clamp, which kernels apply in registers.
inline bool is_clamp(const ActivationSpec& s) {
  return s.kind == ActivationKind::none || s.kind == ActivationKind::relu || s.kind == ActivationKind::clip;
}

/// The function at one point; what reference kernels use.
double activate(const ActivationSpec& spec, double x);

/// Its derivative; at a corner the value of the side towards 0, at 0 of the left side.
double activation_slope(const ActivationSpec& spec, double x);

/// act(sum + residual), or act(sum) + residual with act_before_residual.
double finish(const ActivationSpec& spec, double sum, double residual);

/// Adds the plain node of the activation of `x`; x itself for none.
ir::ValueId expand_activation(ir::Graph& graph, ir::ValueId x, const ActivationSpec& spec);

/// Adds the plain nodes of act'(x) dy: the gradient of x where dy is that of act(x).
ir::ValueId expand_slope(ir::Graph& graph, ir::ValueId dy, ir::ValueId x, const ActivationSpec& spec);

/// Adds the plain nodes for the residual (kNoValue: none) and the activation of `x`.
ir::ValueId expand_finish(ir::Graph& graph, ir::ValueId x, ir::ValueId residual, const ActivationSpec& spec);

}  // namespace trireme::ops
