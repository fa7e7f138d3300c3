// The op fused_elementwise: a chain of elementwise functions in one pass over memory, and the text of its
// steps.
#pragma once

#include <optional>

#include "ops/elementwise/elementwise.h"

namespace trireme::ops {

/// One step: dst = function(operands). Operands and dst are references: i<k> an operand of the node, r<k> a
/// register written by an earlier step, o<k> a result (the last write of each), c<k> entry k of the attribute
/// `constants`. Text form, one string of the attribute `steps` each: "dst function operand...", e.g. "r0 add
/// i0 i1", "o0 relu r0".
struct FusedStepText {
  std::string function;  ///< an elementwise op's name, or gelu_tanh, pow_scalar, muladd (a b + c), clip
                         ///< (bounds in params)
  std::string dst;
  std::vector<std::string> operands;
};
std::string to_string(const FusedStepText& step);
/// Throws invalid_argument for text that is not a step.
FusedStepText parse_fused_step(const std::string& text);

/// Function and parameters (two per step in the attribute `params`) of a node that a fused step can compute:
/// f32 with one result. Operands of the step are the node's first `operands`.
struct FusedFunction {
  std::string name;
  Params params{};
  size_t operands = 1;
};
std::optional<FusedFunction> fused_function(std::string_view op, const ir::NodeView& node);

/// Limits of one node.
inline constexpr int kMaxFusedRegisters = 16, kMaxFusedInputs = 16, kMaxFusedOutputs = 8;

std::vector<ir::Kernel> fused_elementwise_cpu_kernels();

}  // namespace trireme::ops
