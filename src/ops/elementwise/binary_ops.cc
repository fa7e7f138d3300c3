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

using RowOf = RowFn (*)(tensor::DType);

ElementwiseRow comparison(std::string_view name, std::string_view onnx, std::string_view doc, RowOf row) {
  return {name, onnx, doc, 1, kUnknown, row, no_gradient(kBoolean), {}, 2, 2, true};
}

ElementwiseRow on_bits(std::string_view name, std::string_view onnx, std::string_view doc, RowOf row,
                       std::string_view why_no_gradient) {
  return {name, onnx, doc, 1, kUnknown, row, no_gradient(why_no_gradient), {}, 2, 2};
}

}  // namespace

const std::vector<ElementwiseRow>& binary_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
      {"add", "Add", "y = a + b", 1, kRounds, binary<Add>, {.rule = add_rule}, {}, 2, 2},
      {"sub", "Sub", "y = a - b", 1, kRounds, binary<Sub>, {.rule = sub_rule}, {}, 2, 2},
      {"mul", "Mul", "y = a b", 1, kRounds, binary<Mul>, {.rule = mul_rule}, {}, 2, 2},
      {"div", "Div", "y = a / b; integers truncate", 1, kRounds, binary<Div>, {.rule = div_rule}, {}, 2, 2},
      {"mod",
       "Mod",
       "y = a mod b with the sign of b, or of a if fmod = 1",
       8,
       kUnknown,
       binary<Mod>,
       {.rule = mod_rule},
       {{"fmod", 0, true}},
       2,
       2},
      {"prelu",
       "PRelu",
       "y = x < 0 ? slope x : x",
       2,
       kRounds,
       binary<PRelu>,
       {.rule = prelu_rule},
       {},
       2,
       2},
      comparison("equal", "Equal", "y = a == b", compare<Equal, Class::any>),
      comparison("less", "Less", "y = a < b", compare<Less>),
      comparison("less_or_equal", "LessOrEqual", "y = a <= b", compare<LessOrEqual>),
      comparison("greater", "Greater", "y = a > b", compare<Greater>),
      comparison("greater_or_equal", "GreaterOrEqual", "y = a >= b", compare<GreaterOrEqual>),
      on_bits("and", "And", "y = a and b", binary<And, Class::boolean>, kBoolean),
      on_bits("or", "Or", "y = a or b", binary<Or, Class::boolean>, kBoolean),
      on_bits("xor", "Xor", "y = a xor b", binary<Xor, Class::boolean>, kBoolean),
      on_bits("bitwise_and", "BitwiseAnd", "y = a & b", binary<BitwiseAnd, Class::integer>, kInteger),
      on_bits("bitwise_or", "BitwiseOr", "y = a | b", binary<BitwiseOr, Class::integer>, kInteger),
      on_bits("bitwise_xor", "BitwiseXor", "y = a ^ b", binary<BitwiseXor, Class::integer>, kInteger),
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
       kRounds,
       variadic<Add>,
       {.rule = sum_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"mean",
       "Mean",
       "y = (a + b + ...) / operands",
       2,
       kSumsMany,
       variadic<Add>,
       {.rule = mean_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"min",
       "Min",
       "y = min(a, b, ...), NaN if any is",
       3,
       kChooses,
       variadic<Min>,
       {.rule = extreme_rule},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"max",
       "Max",
       "y = max(a, b, ...), NaN if any is",
       3,
       kChooses,
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
