// Broadcasting elementwise functions of two or more tensors: operators from the rows of
// tensor/elementwise_rows.inc, and the rules of their gradients.
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

// y = a - k b, where k = (a - y) / b is piecewise constant.
Gradients mod_rule(GradBuilder& g) {
  const ValueId k = g.div(g.sub(g.in(0), g.out()), g.in(1));
  return {g.to_operand(g.grad(), 0), g.neg(g.to_operand(g.mul(g.grad(), k), 1))};
}

Gradients prelu_rule(GradBuilder& g) {
  const ValueId zero = g.scalar(0, g.in(0)), x = g.in(0);
  const ValueId above = g.op("greater", {x, zero});
  return {g.to_operand(g.op("where", {above, g.grad(), g.mul(g.grad(), g.in(1))}), 0),
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

/// min and max: operands that equal the result share its gradient evenly, as in PyTorch.
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

constexpr std::string_view kInteger = "integer operands";

}  // namespace

const std::vector<ElementwiseRow>& binary_rows() {
  using namespace math;
  static const std::vector<ElementwiseRow> rows{
#define BINARY_ROW(name, Functor, types, loops, onnx, formula, flop, precision, gradient, ...) \
  {#name, onnx, formula, flop, precision, binary<Functor, Class::types>, gradient, {__VA_ARGS__}, 2, 2},
#define COMPARE_ROW(name, Functor, types, onnx, formula) \
  {#name, onnx, formula, 1, kUnknown, compare<Functor, Class::types>, no_gradient(kBoolean), {}, 2, 2, true},
#include "tensor/elementwise_rows.inc"
  };
  return rows;
}

const std::vector<ElementwiseRow>& variadic_rows() {
  using namespace math;
  constexpr size_t kMost = StridedLoop::kMaxOperands;
  static const std::vector<ElementwiseRow> rows{
#define FOLD_ROW(name, Functor, onnx, formula, flop, precision, gradient) \
  {#name, onnx, formula, flop, precision, variadic<Functor>, gradient, {}, 1, kMost},
#define FOLD_OF_ROW(name, step, Functor, onnx, formula, flop, precision, gradient, divides) \
  {#name, onnx, formula, flop, precision, variadic<Functor>, gradient, {}, 1, kMost, false, #step, divides},
#include "tensor/elementwise_rows.inc"
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
