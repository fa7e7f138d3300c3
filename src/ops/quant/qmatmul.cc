// qmatmul: the 8-bit product of two computed operands with NumPy's batch rules. Passes make this op.
#include "ops/cut_notation.h"
#include "ops/dense/matmul_shape.h"
#include "ops/quant/qproduct.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Shape;
using Q = QOperand;

/// Cuts batches and rows; broadcast batches stay whole.
ir::CutRule qmatmul_cut(const ir::NodeView& n) {
  const Shape &a = n.in[Q::x].shape, &b = n.in[Q::w].shape;
  CutNotation notation(n);
  if (a.rank() < 2 || a.rank() != b.rank()) return {.notation = notation.text()};
  std::string batch = letters(a.rank() - 2);
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!(a[i] == b[i])) batch[i] = '.';
  }
  const std::string row(1, static_cast<char>('a' + batch.size()));
  notation.in(Q::x, batch + row + ".").in(Q::w, batch + "..").out(0, batch + row + ".");
  return {.notation = notation.text()};
}

ir::ValueId dequantized_operand(ir::Graph& g, const ir::Node& node, size_t value) {
  return g.add1(table().need("dequantize_linear"), {node.in[value], node.in[value + 1], node.in[value + 2]});
}

std::vector<ir::ValueId> expand_qmatmul(ir::Graph& g, const ir::Node& node) {
  const ir::ValueId y = g.add1(table().need("matmul"),
                               {dequantized_operand(g, node, Q::x), dequantized_operand(g, node, Q::w)});
  const bool is_quantized = node.in.size() > Q::y_scale && node.in[Q::y_scale] != ir::kNoValue;
  if (!is_quantized) return {y};
  return {g.add1(table().need("quantize_linear"), {y, node.in[Q::y_scale], node.in[Q::y_zero]})};
}

}  // namespace

ir::OpSchema qmatmul_schema() {
  return {.name = "qmatmul",
          .doc =
              "y = quantize(dequantize(a) dequantize(b)) in integers, [..., m, k] by [..., k, n], both "
              "computed; operands a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, one value each; "
              "without y_scale the result is f32",
          .cut = qmatmul_cut,
          .min_in = 6,
          .max_in = 8,
          .infer =
              [](const ir::NodeView& n) {
                const Shape y = infer_matmul(n.in[Q::x].shape, n.in[Q::w].shape);
                return std::vector<tensor::TensorType>{{product_dtype(n), y}};
              },
          .expand = expand_qmatmul,
          .cost = [](const ir::NodeView& n) { return matmul_cost(n, Q::x, Q::w); },
          .why_no_grad = "integer product: its operands are quantized values"};
}

}  // namespace trireme::ops
