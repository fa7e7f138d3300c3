// Functions of two or more tensors, element by element with broadcasting: the table of names, formulas and
// types.
#include "tensor/binary_math.h"
#include "ops/elementwise/elementwise.h"
#include "ops/grad.h"

namespace trireme::ops {
namespace {

template <class F, Class kClass = Class::number>
constexpr auto binary = &row_for<BinaryRow<F>, kClass>;
template <class F, Class kClass = Class::number>
constexpr auto compare = &row_for<CompareRow<F>, kClass>;
template <class F>
constexpr auto variadic = &row_for<VariadicRow<F>, Class::number>;

Gradients add_rule(GradBuilder& g) { return {g.to_operand(g.grad(), 0), g.to_operand(g.grad(), 1)}; }

Gradients sub_rule(GradBuilder& g) { return {g.to_operand(g.grad(), 0), g.neg(g.to_operand(g.grad(), 1))}; }

Gradients mul_rule(GradBuilder& g) {
  return {g.to_operand(g.mul(g.grad(), g.in(1)), 0), g.to_operand(g.mul(g.grad(), g.in(0)), 1)};
}

// da = dy / b, db = -dy a / b^2 = -da y.
Gradients div_rule(GradBuilder& g) {
  const ValueId da = g.div(g.grad(), g.in(1));
  return {g.to_operand(da, 0), g.neg(g.to_operand(g.mul(da, g.out()), 1))};
}

// y = a - k b, k = (a - y) / b being piecewise constant.
Gradients mod_rule(GradBuilder& g) {
  const ValueId k = g.div(g.sub(g.in(0), g.out()), g.in(1));
  return {g.to_operand(g.grad(), 0), g.neg(g.to_operand(g.mul(g.grad(), k), 1))};
}

Gradients prelu_rule(GradBuilder& g) {
  const ValueId zero = g.scalar(0, g.in(0)), x = g.in(0);
  const ValueId below = g.op("less", {x, zero});
  return {g.to_operand(g.op("where", {below, g.mul(g.grad(), g.in(1)), g.grad()}), 0),
          g.to_operand(g.mul(g.grad(), g.op("min", {x, zero})), 1)};
}

Gradients sum_rule(GradBuilder& g) {
  Gradients out = g.none();
  for (size_t i = 0; i < out.size(); ++i) out[i] = g.to_operand(g.grad(), i);
  return out;
}

Gradients mean_rule(GradBuilder& g) {
  Gradients out = g.none();
  const ValueId share = g.scaled(g.grad(), 1.0 / static_cast<double>(out.size()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = g.to_operand(share, i);
  return out;
}

/// min and max: operands that are equal to the result share its gradient evenly, as PyTorch has it.
Gradients extreme_rule(GradBuilder& g) {
  Gradients out = g.none();
  std::vector<ValueId> hits;
  for (size_t i = 0; i < out.size(); ++i) {
    hits.push_back(g.op("cast_like", {g.op("equal", {g.in(i), g.out()}), g.out()}));
  }
  const ValueId share = g.div(g.grad(), hits.size() == 1 ? hits[0] : g.op("sum", hits));
  for (size_t i = 0; i < out.size(); ++i) out[i] = g.to_operand(g.mul(hits[i], share), i);
  return out;
}

constexpr std::string_view kBoolean = "boolean result";
constexpr std::string_view kInteger = "integer operands";

}  // namespace

const std::vector<ElementwiseRow>& binary_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
      {"add", "Add", "y = a + b", 1, binary<Add>, {.rule = add_rule}, {}, 2, 2},
      {"sub", "Sub", "y = a - b", 1, binary<Sub>, {.rule = sub_rule}, {}, 2, 2},
      {"mul", "Mul", "y = a b", 1, binary<Mul>, {.rule = mul_rule}, {}, 2, 2},
      {"div", "Div", "y = a / b; integers truncate", 1, binary<Div>, {.rule = div_rule}, {}, 2, 2},
      {"mod",
       "Mod",
       "y = a mod b with the sign of b, or of a if fmod = 1",
       8,
       binary<Mod>,
       {.rule = mod_rule},
       {{"fmod", 0, true}},
       2,
       2},
      {"prelu", "PRelu", "y = x < 0 ? slope x : x", 2, binary<PRelu>, {.rule = prelu_rule}, {}, 2, 2},
      {"equal", "Equal", "y = a == b", 1, compare<Equal, Class::any>, no_gradient(kBoolean), {}, 2, 2, true},
      {"less", "Less", "y = a < b", 1, compare<Less>, no_gradient(kBoolean), {}, 2, 2, true},
      {"less_or_equal",
       "LessOrEqual",
       "y = a <= b",
       1,
       compare<LessOrEqual>,
       no_gradient(kBoolean),
       {},
       2,
       2,
       true},
      {"greater", "Greater", "y = a > b", 1, compare<Greater>, no_gradient(kBoolean), {}, 2, 2, true},
      {"greater_or_equal",
       "GreaterOrEqual",
       "y = a >= b",
       1,
       compare<GreaterOrEqual>,
       no_gradient(kBoolean),
       {},
       2,
       2,
       true},
      {"and", "And", "y = a and b", 1, binary<And, Class::boolean>, no_gradient(kBoolean), {}, 2, 2},
      {"or", "Or", "y = a or b", 1, binary<Or, Class::boolean>, no_gradient(kBoolean), {}, 2, 2},
      {"xor", "Xor", "y = a xor b", 1, binary<Xor, Class::boolean>, no_gradient(kBoolean), {}, 2, 2},
      {"bitwise_and",
       "BitwiseAnd",
       "y = a & b",
       1,
       binary<BitwiseAnd, Class::integer>,
       no_gradient(kInteger),
       {},
       2,
       2},
      {"bitwise_or",
       "BitwiseOr",
       "y = a | b",
       1,
       binary<BitwiseOr, Class::integer>,
       no_gradient(kInteger),
       {},
       2,
       2},
      {"bitwise_xor",
       "BitwiseXor",
       "y = a ^ b",
       1,
       binary<BitwiseXor, Class::integer>,
       no_gradient(kInteger),
       {},
       2,
       2},
  };
  return rows;
}

const std::vector<ElementwiseRow>& variadic_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
      {"sum",
       "Sum",
       "y = a + b + ...",
       1,
       variadic<Add>,
       {.rule = sum_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"mean",
       "Mean",
       "y = (a + b + ...) / operands",
       2,
       variadic<Add>,
       {.rule = mean_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"min",
       "Min",
       "y = min(a, b, ...), NaN if any is",
       3,
       variadic<Min>,
       {.rule = extreme_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"max",
       "Max",
       "y = max(a, b, ...), NaN if any is",
       3,
       variadic<Max>,
       {.rule = extreme_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
  };
  return rows;
}

std::vector<ir::OpDef> binary_ops() {
  std::vector<ir::OpDef> ops;
  for (const auto* rows : {&binary_rows(), &variadic_rows()}) {
    for (const ElementwiseRow& row : *rows)
      ops.push_back({elementwise_schema(row), elementwise_cpu_kernels(row)});
  }
  return ops;
}

}  // namespace trireme::ops
