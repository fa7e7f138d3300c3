// det and einsum: what schema and kernel files share.
#pragma once

#include <algorithm>

#include "ir/kernel.h"
#include "ops/grad.h"

namespace trireme::ops {

std::vector<ir::Kernel> det_cpu_kernels();
std::vector<ir::Kernel> det_grad_cpu_kernels();
std::vector<ir::Kernel> einsum_cpu_kernels();
Gradients einsum_rule(GradBuilder& g);
Gradients det_rule(GradBuilder& g);
/// einsum as transposes, sums and matrix products: how devices run it.
std::vector<ValueId> expand_einsum(ir::Graph& graph, const ir::Node& node);
/// The kernel of two f32 operands whose equation is a batched matrix product up to the order of dimensions.
ir::Kernel einsum_matmul_kernel();

/// Numbers of an equation's letters.
using EinsumLetters = std::vector<size_t>;
inline bool has_letter(const EinsumLetters& letters, size_t l) {
  return std::find(letters.begin(), letters.end(), l) != letters.end();
}

/// An einsum equation applied to shapes: every letter (and every dimension under "...") has a number.
struct EinsumPlan {
  std::vector<EinsumLetters> operands;  ///< letter of each dimension of each operand
  EinsumLetters result;                 ///< letter of each dimension of the result
  std::vector<tensor::Dim> extents;     ///< by letter
};
/// Throws invalid_argument for an equation that does not fit the operands.
EinsumPlan parse_einsum(const std::string& equation, const std::vector<tensor::Shape>& operands);

}  // namespace trireme::ops
