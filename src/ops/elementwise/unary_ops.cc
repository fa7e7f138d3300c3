// Elementwise functions of one tensor: operators and their gradients from the rows of
// tensor/elementwise_rows.inc.
#include "tensor/derivative_math.h"
#include "tensor/element_math.h"
#include "ops/elementwise/elementwise.h"
#include "ops/grad.h"

namespace trireme::ops {
namespace {

template <class F, Class kClass = Class::real>
constexpr auto unary = &row_for<UnaryRow<F>, kClass>;
template <class F>
constexpr auto predicate = &row_for<PredicateRow<F>, Class::real>;

/// A gradient whose derivative is computed from the operand (x) or from the result (y).
template <class F>
Gradient from_x(std::string_view formula, double flop) {
  return {.formula = formula, .flop = flop, .row = &row_for<BinaryRow<F>, Class::real>};
}
template <class F>
Gradient from_y(std::string_view formula, double flop) {
  return {.formula = formula, .flop = flop, .row = &row_for<BinaryRow<F>, Class::real>, .of_result = true};
}

/// The same for derivatives that only pass on elements of dy, their negatives, or zero.
template <class F>
Gradient moves_x(std::string_view formula, double flop) {
  Gradient g = from_x<F>(formula, flop);
  g.moves = true;
  return g;
}
template <class F>
Gradient moves_y(std::string_view formula, double flop) {
  Gradient g = from_y<F>(formula, flop);
  g.moves = true;
  return g;
}

Gradients neg_rule(GradBuilder& g) { return {g.neg(g.grad())}; }

constexpr std::string_view kPiecewise = "piecewise constant: its gradient is zero wherever it exists";

}  // namespace

const std::vector<ElementwiseRow>& unary_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows = {
#define UNARY_ROW(name, Functor, types, onnx, formula, flop, precision, derive, grad_formula, grad_flop, \
                  ...)                                                                                   \
  {#name,                                                                                                \
   onnx,                                                                                                 \
   formula,                                                                                              \
   flop,                                                                                                 \
   precision,                                                                                            \
   unary<Functor, Class::types>,                                                                         \
   derive<Functor##Grad>(grad_formula, grad_flop),                                                       \
   {__VA_ARGS__}},
#define UNARY_ROW_ALONE(name, Functor, types, onnx, formula, flop, precision, gradient) \
  {#name, onnx, formula, flop, precision, unary<Functor, Class::types>, gradient},
#define PREDICATE_ROW(name, Functor, onnx, formula, flop, ...)                              \
  {#name,         onnx, formula, flop, kUnknown, predicate<Functor>, no_gradient(kBoolean), \
   {__VA_ARGS__}, 1,    1,       true},
#include "tensor/elementwise_rows.inc"
  };
  return rows;
}

const std::vector<ElementwiseRow>& unary_grad_rows() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ElementwiseRow& row : unary_rows()) all.push_back(std::string(row.name) + "_grad");
    return all;
  }();
  static const std::vector<ElementwiseRow> rows = [] {
    std::vector<ElementwiseRow> made;
    for (size_t i = 0; i < names.size(); ++i) {
      const ElementwiseRow& of = unary_rows()[i];
      if (of.gradient.row == nullptr) continue;
      made.push_back({names[i], "", of.gradient.formula, of.gradient.flop, kUnknown, of.gradient.row,
                      no_gradient(kSecondDerivative), of.attrs, 2, 2});
      made.back().moves = of.gradient.moves ? 0b1 : 0;
      made.back().gradient.linear = LinearIn::first;  // linear in dy
    }
    return made;
  }();
  return rows;
}

std::vector<ir::OpDef> unary_ops() {
  std::vector<ir::OpDef> ops;
  for (const auto* rows : {&unary_rows(), &unary_grad_rows()}) {
    for (const ElementwiseRow& row : *rows)
      ops.push_back({elementwise_schema(row), elementwise_cpu_kernels(row)});
  }
  return ops;
}

}  // namespace trireme::ops
