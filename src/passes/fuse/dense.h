// Fusion of dense products with what follows them: matmul + bias + activation + residual become one operator.
#pragma once

#include "ir/graph.h"

namespace trireme::passes {

/// Rewrites matmul and gemm with constant weights as linear.
size_t make_linear(ir::Graph& graph);

/// Moves only biases into linear and conv_nhwc, for graphs that are differentiated afterwards: the gradient
/// rules of these operators cover a bias.
size_t fuse_biases(ir::Graph& graph);

/// Moves bias, activation and residual after linear and conv_nhwc into the operator.
size_t fuse_epilogues(ir::Graph& graph);

/// Whether the node applies an activation to its result.
inline bool has_activation(const ir::Node& node) {
  return node.attrs.get_string("activation", "none") != "none";
}

}  // namespace trireme::passes
