// Functions of one tensor, element by element: the table of names, formulas, flop counts and types.
#include "ops/elementwise/element_math.h"
#include "ops/elementwise/elementwise.h"

namespace trireme::ops {
namespace {

template <class F, Class kClass = Class::real>
constexpr auto unary = &row_for<UnaryRow<F>, kClass>;
template <class F>
constexpr auto predicate = &row_for<PredicateRow<F>, Class::real>;

constexpr std::string_view kPiecewise = "piecewise constant: its gradient is zero wherever it exists";
constexpr std::string_view kBoolean = "boolean result";

}  // namespace

const std::vector<ElementwiseRow>& unary_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
      {"abs", "Abs", "y = |x|", 1, unary<Abs, Class::number>},
      {"neg", "Neg", "y = -x", 1, unary<Neg, Class::signed_number>},
      {"sign", "Sign", "y = -1, 0 or 1", 2, unary<Sign, Class::number>, {}, kPiecewise},
      {"floor", "Floor", "y = largest integer <= x", 1, unary<Floor>, {}, kPiecewise},
      {"ceil", "Ceil", "y = smallest integer >= x", 1, unary<Ceil>, {}, kPiecewise},
      {"round", "Round", "y = nearest integer, halves to even", 1, unary<Round>, {}, kPiecewise},
      {"exp", "Exp", "y = e^x", 16, unary<Exp>},
      {"log", "Log", "y = ln x", 22, unary<Log>},
      {"sqrt", "Sqrt", "y = sqrt(x)", 1, unary<Sqrt>},
      {"reciprocal", "Reciprocal", "y = 1 / x", 1, unary<Reciprocal>},
      {"sin", "Sin", "y = sin x", 20, unary<Sin>},
      {"cos", "Cos", "y = cos x", 20, unary<Cos>},
      {"tan", "Tan", "y = tan x", 40, unary<Tan>},
      {"asin", "Asin", "y = arcsin x", 40, unary<Asin>},
      {"acos", "Acos", "y = arccos x", 40, unary<Acos>},
      {"atan", "Atan", "y = arctan x", 40, unary<Atan>},
      {"sinh", "Sinh", "y = sinh x", 40, unary<Sinh>},
      {"cosh", "Cosh", "y = cosh x", 40, unary<Cosh>},
      {"tanh", "Tanh", "y = tanh x", 20, unary<Tanh>},
      {"asinh", "Asinh", "y = arsinh x", 40, unary<Asinh>},
      {"acosh", "Acosh", "y = arcosh x", 40, unary<Acosh>},
      {"atanh", "Atanh", "y = artanh x", 40, unary<Atanh>},
      {"erf", "Erf", "y = 2/sqrt(pi) integral of e^(-t^2) from 0 to x", 26, unary<Erf>},
      {"sigmoid", "Sigmoid", "y = 1 / (1 + e^-x)", 18, unary<Sigmoid>},
      {"relu", "Relu", "y = max(x, 0)", 1, unary<Relu, Class::number>},
      {"leaky_relu", "LeakyRelu", "y = x < 0 ? alpha x : x", 2, unary<LeakyRelu>, {{"alpha", 0.01}}},
      {"elu", "Elu", "y = x > 0 ? x : alpha (e^x - 1)", 17, unary<Elu>, {{"alpha", 1}}},
      {"selu",
       "Selu",
       "y = gamma (x > 0 ? x : alpha (e^x - 1))",
       18,
       unary<Selu>,
       {{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}}},
      {"celu", "Celu", "y = max(x, 0) + min(0, alpha (e^(x/alpha) - 1))", 20, unary<Celu>, {{"alpha", 1}}},
      {"thresholded_relu",
       "ThresholdedRelu",
       "y = x > alpha ? x : 0",
       1,
       unary<ThresholdedRelu>,
       {{"alpha", 1}}},
      {"hard_sigmoid",
       "HardSigmoid",
       "y = clip(alpha x + beta, 0, 1)",
       4,
       unary<HardSigmoid>,
       {{"alpha", 0.2}, {"beta", 0.5}}},
      {"hard_swish", "HardSwish", "y = x clip(x / 6 + 1/2, 0, 1)", 5, unary<HardSwish>},
      {"softplus", "Softplus", "y = ln(1 + e^x)", 40, unary<Softplus>},
      {"softsign", "Softsign", "y = x / (1 + |x|)", 3, unary<Softsign>},
      {"mish", "Mish", "y = x tanh(ln(1 + e^x))", 22, unary<Mish>},
      {"swish", "Swish", "y = x / (1 + e^(-alpha x))", 20, unary<Swish>, {{"alpha", 1}}},
      {"shrink",
       "Shrink",
       "y = x < -lambd ? x + bias : x > lambd ? x - bias : 0",
       4,
       unary<Shrink, Class::number>,
       {{"bias", 0}, {"lambd", 0.5}}},
      {"is_nan", "IsNaN", "y = x is not a number", 1, predicate<IsNan>, {}, kBoolean, 1, 1, true},
      {"is_inf",
       "IsInf",
       "y = x is infinite, of the signs asked for",
       1,
       predicate<IsInf>,
       {{"detect_negative", 1, true}, {"detect_positive", 1, true}},
       kBoolean,
       1,
       1,
       true},
      {"not", "Not", "y = not x", 1, unary<Not, Class::boolean>, {}, kBoolean},
      {"bitwise_not", "BitwiseNot", "y = ~x", 1, unary<BitwiseNot, Class::integer>, {}, "integer operands"},
  };
  return rows;
}

std::vector<ir::OpDef> unary_ops() {
  std::vector<ir::OpDef> ops;
  for (const ElementwiseRow& row : unary_rows())
    ops.push_back({elementwise_schema(row), elementwise_cpu_kernels(row)});
  return ops;
}

}  // namespace trireme::ops
