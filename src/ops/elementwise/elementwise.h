// A row of tensor/elementwise_rows.inc as schemas and kernels read it.
#pragma once

#include <string_view>
#include <vector>

#include "ir/kernel.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/precision_rules.h"

namespace trireme::ops {

class GradBuilder;

struct ElementwiseAttr {
  std::string_view name;
  double fallback;
  bool is_int = false;
};

/// In place of a class of precision: the results hold elements of the operands, their negatives and zero, and
/// the class follows from that.
inline constexpr std::nullopt_t kChooses = std::nullopt;

/// Operands in which an operator is linear: the first, each of two while the other is fixed, all together.
enum class LinearIn : uint8_t { none, first, each, jointly };

/// How a row is differentiated. Rows of one operand give dx = f(dy, v), v being x or y: the op `<name>_grad`
/// of the operands dy and v is made of that. Others name a rule, or why there is none.
struct Gradient {
  std::string_view formula = {};          ///< of dx
  double flop = 0;                        ///< per element of dx
  RowFn (*row)(tensor::DType) = nullptr;  ///< f
  bool of_result = false;                 ///< v is y
  std::vector<std::optional<ir::ValueId>> (*rule)(GradBuilder&) = nullptr;
  std::string_view why_none = {};
  bool moves = false;  ///< dx holds elements of dy, their negatives and zero
  LinearIn linear = LinearIn::none;
};

struct ElementwiseRow {
  std::string_view name;
  std::string_view onnx;
  std::string_view doc;
  double flop;                                 ///< per result element, as counted for the vector kernels
  std::optional<ir::PrecisionRule> precision;  ///< or kChooses
  RowFn (*row)(tensor::DType);
  Gradient gradient = {};
  std::vector<ElementwiseAttr> attrs = {};
  size_t min_in = 1, max_in = 1;
  bool is_predicate = false;  ///< the result is boolean
  /// The function of two operands that a row of any number of operands folds them with; else the name.
  std::string_view function = name;
  bool divides = false;  ///< by the number of operands, after the fold
  /// As ir::OpSchema::moves.
  uint32_t moves = precision ? 0u : 0xffffffffu;
};

/// The rows of each arity; binary ops broadcast, variadic ops fold their operands.
const std::vector<ElementwiseRow>& unary_rows();
const std::vector<ElementwiseRow>& binary_rows();
const std::vector<ElementwiseRow>& variadic_rows();

/// The rows of the `_grad` ops, made from those of unary_rows.
const std::vector<ElementwiseRow>& unary_grad_rows();

inline constexpr const char* kSecondDerivative = "a backward op: second derivatives are not taken";
/// Why rows of tensor/elementwise_rows.inc with boolean results have no gradient.
inline constexpr std::string_view kBoolean = "boolean result";
inline Gradient no_gradient(std::string_view why) { return {.why_none = why}; }

inline Gradient by_rule(std::vector<std::optional<ir::ValueId>> (*rule)(GradBuilder&),
                        LinearIn linear = LinearIn::none) {
  return {.rule = rule, .linear = linear};
}
inline ElementwiseAttr attr(std::string_view name, double fallback, bool is_int = false) {
  return {name, fallback, is_int};
}

/// Attributes of `node` as the numbers the row's functor reads.
Params params_of(const ElementwiseRow& row, const ir::Attrs& attrs);

/// Schema of a row: all operands of one type, broadcast against each other.
ir::OpSchema elementwise_schema(const ElementwiseRow& row);

/// CPU kernels of a row: the vector toolkit for f32 where it has the function, then the typed reference loop.
std::vector<ir::Kernel> elementwise_cpu_kernels(const ElementwiseRow& row);

/// The kernel (if any) that computes a row's f32 form with the vector toolkit; of unary ops by function name.
std::vector<ir::Kernel> vector_kernels(const ElementwiseRow& row);
/// Operands of the vector toolkit's function for an op or a step of fused_elementwise; 0: it has none.
size_t vector_operands(std::string_view name);
ir::Kernel vector_unary_kernel(std::string_view name, std::function<Params(const ir::Attrs&)> params);
/// The same for the derivative `name`: f32 operands dy and v of one shape.
ir::Kernel vector_gradient_kernel(std::string_view name, std::function<Params(const ir::NodeView&)> params);

/// Binds `row` to a node whose operands all broadcast to result 0.
ir::BoundKernel broadcast_run(RowFn row, const ir::NodeView& node, Params params);

/// Refusal text for an element type without kernel.
std::string no_type(tensor::DType dtype);

/// Extents of all operands.
std::vector<tensor::Dims> all_in_dims(const ir::NodeView& node);

/// Broadcast of all operands' shapes.
tensor::Shape broadcast_all(const ir::NodeView& node);

}  // namespace trireme::ops
