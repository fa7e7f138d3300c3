// Functions of two or more tensors, element by element with broadcasting: the table of names, formulas and
// types.
#include "ops/elementwise/binary_math.h"
#include "ops/elementwise/elementwise.h"

namespace trireme::ops {
namespace {

template <class F, Class kClass = Class::number>
constexpr auto binary = &row_for<BinaryRow<F>, kClass>;
template <class F, Class kClass = Class::number>
constexpr auto compare = &row_for<CompareRow<F>, kClass>;
template <class F>
constexpr auto variadic = &row_for<VariadicRow<F>, Class::number>;

constexpr std::string_view kBoolean = "boolean result";
constexpr std::string_view kInteger = "integer operands";

}  // namespace

const std::vector<ElementwiseRow>& binary_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
      {"add", "Add", "y = a + b", 1, binary<Add>, {}, {}, 2, 2},
      {"sub", "Sub", "y = a - b", 1, binary<Sub>, {}, {}, 2, 2},
      {"mul", "Mul", "y = a b", 1, binary<Mul>, {}, {}, 2, 2},
      {"div", "Div", "y = a / b; integers truncate", 1, binary<Div>, {}, {}, 2, 2},
      {"mod",
       "Mod",
       "y = a mod b with the sign of b, or of a if fmod = 1",
       8,
       binary<Mod>,
       {{"fmod", 0, true}},
       {},
       2,
       2},
      {"prelu", "PRelu", "y = x < 0 ? slope x : x", 2, binary<PRelu>, {}, {}, 2, 2},
      {"equal", "Equal", "y = a == b", 1, compare<Equal, Class::any>, {}, kBoolean, 2, 2, true},
      {"less", "Less", "y = a < b", 1, compare<Less>, {}, kBoolean, 2, 2, true},
      {"less_or_equal", "LessOrEqual", "y = a <= b", 1, compare<LessOrEqual>, {}, kBoolean, 2, 2, true},
      {"greater", "Greater", "y = a > b", 1, compare<Greater>, {}, kBoolean, 2, 2, true},
      {"greater_or_equal",
       "GreaterOrEqual",
       "y = a >= b",
       1,
       compare<GreaterOrEqual>,
       {},
       kBoolean,
       2,
       2,
       true},
      {"and", "And", "y = a and b", 1, binary<And, Class::boolean>, {}, kBoolean, 2, 2},
      {"or", "Or", "y = a or b", 1, binary<Or, Class::boolean>, {}, kBoolean, 2, 2},
      {"xor", "Xor", "y = a xor b", 1, binary<Xor, Class::boolean>, {}, kBoolean, 2, 2},
      {"bitwise_and", "BitwiseAnd", "y = a & b", 1, binary<BitwiseAnd, Class::integer>, {}, kInteger, 2, 2},
      {"bitwise_or", "BitwiseOr", "y = a | b", 1, binary<BitwiseOr, Class::integer>, {}, kInteger, 2, 2},
      {"bitwise_xor", "BitwiseXor", "y = a ^ b", 1, binary<BitwiseXor, Class::integer>, {}, kInteger, 2, 2},
  };
  return rows;
}

const std::vector<ElementwiseRow>& variadic_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
      {"sum", "Sum", "y = a + b + ...", 1, variadic<Add>, {}, {}, 1, StridedLoop::kMaxOperands},
      {"mean",
       "Mean",
       "y = (a + b + ...) / operands",
       2,
       variadic<Add>,
       {},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"min",
       "Min",
       "y = min(a, b, ...), NaN if any is",
       3,
       variadic<Min>,
       {},
       {},
       1,
       StridedLoop::kMaxOperands},
      {"max",
       "Max",
       "y = max(a, b, ...), NaN if any is",
       3,
       variadic<Max>,
       {},
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
