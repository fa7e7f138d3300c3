// Functions of one tensor, element by element: the table of names, formulas, flop counts and types.
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

/// Derivative from the operand, from the result.
template <class F>
Gradient from_x(std::string_view formula, double flop) {
  return {.formula = formula, .flop = flop, .row = &row_for<BinaryRow<F>, Class::real>};
}
template <class F>
Gradient from_y(std::string_view formula, double flop) {
  return {.formula = formula, .flop = flop, .row = &row_for<BinaryRow<F>, Class::real>, .of_result = true};
}

/// A derivative that hands on elements of dy, or their negatives, or zero.
Gradient moving(Gradient g) {
  g.moves = true;
  return g;
}

Gradients neg_rule(GradBuilder& g) { return {g.neg(g.grad())}; }

constexpr std::string_view kPiecewise = "piecewise constant: its gradient is zero wherever it exists";
constexpr std::string_view kBoolean = "boolean result";

std::vector<ElementwiseRow> function_rows() {
  using namespace math;
  return {
      {"abs", "Abs", "y = |x|", 1, kChooses, unary<Abs, Class::number>,
       moving(from_x<AbsGrad>("dx = dy sign x", 2))},
      {"neg", "Neg", "y = -x", 1, kChooses, unary<Neg, Class::signed_number>, {.rule = neg_rule}},
      {"sign", "Sign", "y = -1, 0 or 1", 2, kUnknown, unary<Sign, Class::number>, no_gradient(kPiecewise)},
      {"floor", "Floor", "y = largest integer <= x", 1, kUnknown, unary<Floor>, no_gradient(kPiecewise)},
      {"ceil", "Ceil", "y = smallest integer >= x", 1, kUnknown, unary<Ceil>, no_gradient(kPiecewise)},
      {"round", "Round", "y = nearest integer, halves to even", 1, kUnknown, unary<Round>,
       no_gradient(kPiecewise)},
      {"exp", "Exp", "y = e^x", 16, kRange, unary<Exp>, from_y<ExpGrad>("dx = dy y", 1)},
      {"log", "Log", "y = ln x", 22, kRange, unary<Log>, from_x<LogGrad>("dx = dy / x", 1)},
      {"sqrt", "Sqrt", "y = sqrt(x)", 1, kRange, unary<Sqrt>, from_y<SqrtGrad>("dx = dy / (2 y)", 2)},
      {"reciprocal", "Reciprocal", "y = 1 / x", 1, kRange, unary<Reciprocal>,
       from_y<ReciprocalGrad>("dx = -dy y^2", 3)},
      {"sin", "Sin", "y = sin x", 20, kUnknown, unary<Sin>, from_x<SinGrad>("dx = dy cos x", 21)},
      {"cos", "Cos", "y = cos x", 20, kUnknown, unary<Cos>, from_x<CosGrad>("dx = -dy sin x", 21)},
      {"tan", "Tan", "y = tan x", 40, kUnknown, unary<Tan>, from_y<TanGrad>("dx = dy (1 + y^2)", 3)},
      {"asin", "Asin", "y = arcsin x", 40, kUnknown, unary<Asin>,
       from_x<AsinGrad>("dx = dy / sqrt(1 - x^2)", 4)},
      {"acos", "Acos", "y = arccos x", 40, kUnknown, unary<Acos>,
       from_x<AcosGrad>("dx = -dy / sqrt(1 - x^2)", 4)},
      {"atan", "Atan", "y = arctan x", 40, kUnknown, unary<Atan>, from_x<AtanGrad>("dx = dy / (1 + x^2)", 3)},
      {"sinh", "Sinh", "y = sinh x", 40, kUnknown, unary<Sinh>, from_x<SinhGrad>("dx = dy cosh x", 40)},
      {"cosh", "Cosh", "y = cosh x", 40, kUnknown, unary<Cosh>, from_x<CoshGrad>("dx = dy sinh x", 40)},
      {"tanh", "Tanh", "y = tanh x", 20, kRounds, unary<Tanh>, from_y<TanhGrad>("dx = dy (1 - y^2)", 2)},
      {"asinh", "Asinh", "y = arsinh x", 40, kUnknown, unary<Asinh>,
       from_x<AsinhGrad>("dx = dy / sqrt(x^2 + 1)", 4)},
      {"acosh", "Acosh", "y = arcosh x", 40, kUnknown, unary<Acosh>,
       from_x<AcoshGrad>("dx = dy / sqrt(x^2 - 1)", 4)},
      {"atanh", "Atanh", "y = artanh x", 40, kUnknown, unary<Atanh>,
       from_x<AtanhGrad>("dx = dy / (1 - x^2)", 3)},
      {"erf", "Erf", "y = 2/sqrt(pi) integral of e^(-t^2) from 0 to x", 26, kRounds, unary<Erf>,
       from_x<ErfGrad>("dx = dy 2/sqrt(pi) e^(-x^2)", 19)},
      {"shrink",
       "Shrink",
       "y = x < -lambd ? x + bias : x > lambd ? x - bias : 0",
       4,
       kUnknown,
       unary<Shrink, Class::number>,
       moving(from_x<ShrinkGrad>("dx = |x| > lambd ? dy : 0", 3)),
       {{"bias", 0}, {"lambd", 0.5}}},
  };
}

std::vector<ElementwiseRow> activation_rows() {
  using namespace math;
  return {
      {"sigmoid", "Sigmoid", "y = 1 / (1 + e^-x)", 18, kRounds, unary<Sigmoid>,
       from_y<SigmoidGrad>("dx = dy y (1 - y)", 3)},
      {"relu", "Relu", "y = max(x, 0)", 1, kChooses, unary<Relu, Class::number>,
       moving(from_y<ReluGrad>("dx = y > 0 ? dy : 0", 1))},
      {"leaky_relu",
       "LeakyRelu",
       "y = x < 0 ? alpha x : x",
       2,
       kRounds,
       unary<LeakyRelu>,
       from_x<LeakyReluGrad>("dx = x < 0 ? alpha dy : dy", 2),
       {{"alpha", 0.01}}},
      {"elu",
       "Elu",
       "y = x > 0 ? x : alpha (e^x - 1)",
       17,
       kRounds,
       unary<Elu>,
       from_x<EluGrad>("dx = x > 0 ? dy : dy alpha e^x", 18),
       {{"alpha", 1}}},
      {"selu",
       "Selu",
       "y = gamma (x > 0 ? x : alpha (e^x - 1))",
       18,
       kRounds,
       unary<Selu>,
       from_x<SeluGrad>("dx = dy gamma (x > 0 ? 1 : alpha e^x)", 19),
       {{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}}},
      {"celu",
       "Celu",
       "y = max(x, 0) + min(0, alpha (e^(x/alpha) - 1))",
       20,
       kRounds,
       unary<Celu>,
       from_x<CeluGrad>("dx = x > 0 ? dy : dy e^(x/alpha)", 19),
       {{"alpha", 1}}},
      {"thresholded_relu",
       "ThresholdedRelu",
       "y = x > alpha ? x : 0",
       1,
       kUnknown,
       unary<ThresholdedRelu>,
       moving(from_x<ThresholdedReluGrad>("dx = x > alpha ? dy : 0", 1)),
       {{"alpha", 1}}},
      {"hard_sigmoid",
       "HardSigmoid",
       "y = clip(alpha x + beta, 0, 1)",
       4,
       kRounds,
       unary<HardSigmoid>,
       from_x<HardSigmoidGrad>("dx = 0 < alpha x + beta < 1 ? alpha dy : 0", 5),
       {{"alpha", 0.2}, {"beta", 0.5}}},
      {"hard_swish", "HardSwish", "y = x clip(x / 6 + 1/2, 0, 1)", 5, kRounds, unary<HardSwish>,
       from_x<HardSwishGrad>("dx = dy (x < -3 ? 0 : x <= 3 ? x / 3 + 1/2 : 1)", 5)},
      {"softplus", "Softplus", "y = ln(1 + e^x)", 40, kRange, unary<Softplus>,
       from_x<SoftplusGrad>("dx = dy / (1 + e^-x)", 19)},
      {"softsign", "Softsign", "y = x / (1 + |x|)", 3, kUnknown, unary<Softsign>,
       from_x<SoftsignGrad>("dx = dy / (1 + |x|)^2", 4)},
      {"mish", "Mish", "y = x tanh(ln(1 + e^x))", 22, kRounds, unary<Mish>,
       from_x<MishGrad>("dx = dy (t + x sigmoid(x) (1 - t^2)), t = tanh(softplus(x))", 42)},
      {"swish",
       "Swish",
       "y = x / (1 + e^(-alpha x))",
       20,
       kRounds,
       unary<Swish>,
       from_x<SwishGrad>("dx = dy s (1 + alpha x (1 - s)), s = 1 / (1 + e^(-alpha x))", 23),
       {{"alpha", 1}}},
  };
}

std::vector<ElementwiseRow> predicate_rows() {
  using namespace math;
  return {
      {"is_nan",
       "IsNaN",
       "y = x is not a number",
       1,
       kUnknown,
       predicate<IsNan>,
       no_gradient(kBoolean),
       {},
       1,
       1,
       true},
      {"is_inf",
       "IsInf",
       "y = x is infinite, of the signs asked for",
       1,
       kUnknown,
       predicate<IsInf>,
       no_gradient(kBoolean),
       {{"detect_negative", 1, true}, {"detect_positive", 1, true}},
       1,
       1,
       true},
      {"not", "Not", "y = not x", 1, kUnknown, unary<Not, Class::boolean>, no_gradient(kBoolean)},
      {"bitwise_not", "BitwiseNot", "y = ~x", 1, kUnknown, unary<BitwiseNot, Class::integer>,
       no_gradient("integer operands")},
  };
}

}  // namespace

const std::vector<ElementwiseRow>& unary_rows() {
  static const std::vector<ElementwiseRow> rows = [] {
    std::vector<ElementwiseRow> all = function_rows();
    for (const auto& more : {activation_rows(), predicate_rows()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
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
