// A common view of products of rows by a matrix, for all operators that compute one.
#include "passes/precision/matrix_product.h"

namespace trireme::passes {

using ir::Node;
using ir::ValueId;

std::optional<MatrixProduct> matrix_product(Rewriter& rw, const Node& node) {
  if (node.out.size() != 1) return std::nullopt;
  const auto flag = [&](const char* name) { return node.attrs.get_int(name, 0) != 0; };
  if (node.op_name() == "matmul") return MatrixProduct{.x = node.in[0], .w = node.in[1]};
  if (node.op_name() == "linear") {
    return MatrixProduct{.x = node.in[0],
                         .w = node.in[1],
                         .bias = node.operand(2),
                         .residual = node.operand(3),
                         .by_rows = flag("transposed"),
                         .act = ops::activation_of(node.attrs)};
  }
  if (node.op_name() != "gemm" || flag("transA") || node.attrs.get_float("alpha", 1) != 1)
    return std::nullopt;
  MatrixProduct p{.x = node.in[0], .w = node.in[1], .bias = node.operand(2), .by_rows = flag("transB")};
  if (p.bias == ir::kNoValue) return p;
  const auto bias = rw.weight_dims(p.bias);
  const auto w = rw.dims(p.w);
  if (!bias || !w || w->size() != 2 || node.attrs.get_float("beta", 1) != 1) return std::nullopt;
  const int64_t n = (*w)[p.by_rows ? 0 : 1];
  // A scalar is the bias of one column.
  if (tensor::element_count(*bias) != n || (!bias->empty() && bias->back() != n)) return std::nullopt;
  p.bias = rw.reshaped_weight(p.bias, {n}, node.from);
  return p;
}

void finish_product(Rewriter& rw, const Node& node, const MatrixProduct& p, ValueId y) {
  if (p.residual != ir::kNoValue || p.act.kind != ops::ActivationKind::none)
    y = ops::expand_finish(rw.graph(), y, p.residual, p.act);
  rw.replace(node.out[0], y);
}

}  // namespace trireme::passes
