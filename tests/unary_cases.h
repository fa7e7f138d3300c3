// What the elementwise operators of one operand compute, one row each: a formula in double that shares no
// code with a kernel, and the operands to try. Tests of operators, of gradients and of vector code, and
// benchmarks, read it.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>

namespace trireme::tests {

struct Range {
  double low = 0, high = 0;
};

struct UnaryCase {
  std::string_view name;                            ///< of the operator, or of the step of fused_elementwise
  double (*formula)(double x, double a, double b);  ///< a, b: the attributes in the order of its row
  Range range;                                      ///< operands whose results f16 holds
  Range slope = range;                              ///< where central differences are exact enough: no pole
  double a = 0, b = 0;  ///< attributes for gradients and vector code, where the operator has some
  Range wide = range;   ///< operands for the vector code of f32
  double ulps = 4;      ///< how far its results may lie from the formula, in units of their last place
  double absolute = 0;  ///< or by this much, for functions that cancel
};

// `expression` of x, and of a and b, in double.
#define FORMULA(expression) \
  [](double x, [[maybe_unused]] double a, [[maybe_unused]] double b) -> double { return expression; }
// clang-format off
inline const UnaryCase kUnaryCases[] = {
    {.name = "abs", .formula = FORMULA(std::fabs(x)), .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "neg", .formula = FORMULA(-x), .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "sign", .formula = FORMULA(static_cast<double>((x > 0) - (x < 0))),
     .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "floor", .formula = FORMULA(std::floor(x)), .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "ceil", .formula = FORMULA(std::ceil(x)), .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "round", .formula = FORMULA(std::nearbyint(x)), .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "exp", .formula = FORMULA(std::exp(x)),
     .range = {-4, 4}, .slope = {-3, 2}, .wide = {-87, 88.7}, .ulps = 1.6},
    {.name = "log", .formula = FORMULA(std::log(x)),
     .range = {0.05, 9}, .slope = {0.3, 5}, .wide = {1e-6, 50}, .ulps = 3},
    {.name = "sqrt", .formula = FORMULA(std::sqrt(x)),
     .range = {0.01, 9}, .slope = {0.3, 5}, .wide = {0, 9}, .ulps = 1},
    {.name = "reciprocal", .formula = FORMULA(1 / x),
     .range = {0.2, 4}, .slope = {0.4, 3}, .wide = {0.1, 9}, .ulps = 1},
    {.name = "sin", .formula = FORMULA(std::sin(x)),
     .range = {-6, 6}, .slope = {-4, 4}, .wide = {-100, 100}, .absolute = 2.4e-7},
    {.name = "cos", .formula = FORMULA(std::cos(x)),
     .range = {-6, 6}, .slope = {-4, 4}, .wide = {-100, 100}, .absolute = 2.4e-7},
    {.name = "tan", .formula = FORMULA(std::tan(x)), .range = {-1, 1}},
    {.name = "asin", .formula = FORMULA(std::asin(x)), .range = {-0.9, 0.9}, .slope = {-0.8, 0.8}},
    {.name = "acos", .formula = FORMULA(std::acos(x)), .range = {-0.9, 0.9}, .slope = {-0.8, 0.8}},
    {.name = "atan", .formula = FORMULA(std::atan(x)), .range = {-4, 4}, .slope = {-3, 3}},
    {.name = "sinh", .formula = FORMULA(std::sinh(x)), .range = {-2, 2}},
    {.name = "cosh", .formula = FORMULA(std::cosh(x)), .range = {-2, 2}},
    {.name = "tanh", .formula = FORMULA(std::tanh(x)),
     .range = {-4, 4}, .slope = {-3, 3}, .wide = {-12, 12}, .ulps = 3},
    {.name = "asinh", .formula = FORMULA(std::asinh(x)), .range = {-4, 4}, .slope = {-3, 3}},
    {.name = "acosh", .formula = FORMULA(std::acosh(x)), .range = {1.1, 4}, .slope = {1.3, 4}},
    {.name = "atanh", .formula = FORMULA(std::atanh(x)), .range = {-0.9, 0.9}, .slope = {-0.8, 0.8}},
    {.name = "erf", .formula = FORMULA(std::erf(x)), .range = {-3, 3}, .slope = {-2, 2}, .wide = {-6, 6}},
    {.name = "shrink", .formula = FORMULA(x < -b ? x + a : x > b ? x - a : 0),
     .range = {-2, 2}, .a = 0.5, .b = 1.5, .wide = {-9, 9}, .ulps = 1},
    {.name = "sigmoid", .formula = FORMULA(1 / (1 + std::exp(-x))),
     .range = {-6, 6}, .slope = {-4, 4}, .wide = {-80, 80}, .ulps = 3},
    {.name = "relu", .formula = FORMULA(x > 0 ? x : 0), .range = {-3, 3}, .wide = {-9, 9}, .ulps = 0},
    {.name = "leaky_relu", .formula = FORMULA(x < 0 ? a * x : x),
     .range = {-3, 3}, .a = 0.25, .wide = {-9, 9}, .ulps = 0},
    {.name = "elu", .formula = FORMULA(x > 0 ? x : a * std::expm1(x)),
     .range = {-3, 3}, .a = 1.5, .wide = {-20, 20}, .ulps = 3},
    {.name = "selu", .formula = FORMULA(b * (x > 0 ? x : a * std::expm1(x))),
     .range = {-3, 3}, .a = 1.5, .b = 1.25, .wide = {-20, 20}},
    {.name = "celu", .formula = FORMULA(x > 0 ? x : a * std::expm1(x / a)),
     .range = {-3, 3}, .a = 2, .wide = {-20, 20}},
    {.name = "thresholded_relu", .formula = FORMULA(x > a ? x : 0),
     .range = {-3, 3}, .a = 1, .wide = {-9, 9}, .ulps = 0},
    {.name = "hard_sigmoid", .formula = FORMULA(std::clamp(a * x + b, 0.0, 1.0)),
     .range = {-5, 5}, .a = 0.25, .b = 0.5, .wide = {-9, 9}, .ulps = 1, .absolute = 1e-7},
    {.name = "hard_swish", .formula = FORMULA(x * std::clamp(x / 6 + 0.5, 0.0, 1.0)),
     .range = {-5, 5}, .wide = {-9, 9}, .ulps = 3, .absolute = 4e-7},
    {.name = "softplus", .formula = FORMULA(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))),
     .range = {-5, 5}, .slope = {-4, 4}, .wide = {-80, 80}, .ulps = 3},
    {.name = "softsign", .formula = FORMULA(x / (1 + std::fabs(x))),
     .range = {-5, 5}, .slope = {-4, 4}, .wide = {-9, 9}, .ulps = 2},
    {.name = "mish", .formula = FORMULA(x * std::tanh(std::log1p(std::exp(x)))),
     .range = {-5, 5}, .slope = {-4, 4}, .wide = {-40, 60}, .ulps = 6},
    // Twice x is exact: the error of e^(-a x) is that of the function alone.
    {.name = "swish", .formula = FORMULA(x / (1 + std::exp(-a * x))),
     .range = {-5, 5}, .slope = {-4, 4}, .a = 2, .wide = {-40, 40}},
    {.name = "gelu", .formula = FORMULA(0.5 * x * (1 + std::erf(x / std::sqrt(2.0)))),
     .range = {-4, 4}, .wide = {-8, 8}, .absolute = 3e-7},
    {.name = "gelu_tanh",
     .formula = FORMULA(0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))),
     .range = {-4, 4}, .wide = {-8, 8}, .absolute = 6e-7},
    {.name = "clip", .formula = FORMULA(std::clamp(x, a, b)), .range = {-9, 9}, .a = -2, .b = 3, .ulps = 0},
};
// clang-format on
#undef FORMULA

/// The row of `name`, or null.
inline const UnaryCase* unary_case(std::string_view name) {
  const auto* end = std::end(kUnaryCases);
  const auto* at =
      std::find_if(std::begin(kUnaryCases), end, [&](const UnaryCase& c) { return c.name == name; });
  return at == end ? nullptr : at;
}

}  // namespace trireme::tests
