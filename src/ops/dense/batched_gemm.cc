// batched_gemm: matrix products that read each operand in either orientation, which saves transposes.
#include "ops/dense/batched_gemm.h"

#include "ops/dense/dense_cuts.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::Shape;

/// The shape with its last two axes exchanged if `swap`.
Shape oriented(const Shape& s, bool swap) {
  if (!swap || !s.has_rank()) return s;
  std::vector<Dim> dims = s.dims();
  std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  return Shape(std::move(dims));
}

std::vector<tensor::TensorType> infer_batched_gemm(const ir::NodeView& n) {
  const Shape &a = n.in[0].shape, &b = n.in[1].shape;
  base::require((!a.has_rank() || a.rank() >= 2) && (!b.has_rank() || b.rank() >= 2),
                "batched_gemm takes matrices, got ", a.to_string(), " and ", b.to_string());
  return {{n.in[0].dtype,
           infer_matmul(oriented(a, is_set(n.attrs, "transA")), oriented(b, is_set(n.attrs, "transB")))}};
}

std::vector<ir::ValueId> expand_batched_gemm(ir::Graph& g, const ir::Node& node) {
  auto operand = [&](size_t i, std::string_view name) {
    if (!is_set(node.attrs, name)) return node.in[i];
    std::vector<int64_t> perm(g.type(node.in[i]).shape.rank());
    for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    return g.add1(table().need("transpose"), {node.in[i]}, {{"perm", perm}});
  };
  return {g.add1(table().need("matmul"), {operand(0, "transA"), operand(1, "transB")})};
}

Gradients batched_gemm_gradients(GradBuilder& g) {
  const bool ta = is_set(g.attrs(), "transA"), tb = is_set(g.attrs(), "transB");
  const BatchedProduct d = product_gradients(g, {g.in(0), g.in(1), g.grad(), ta, tb});
  return {g.to_operand(d.a, 0), g.to_operand(d.b, 1)};
}

}  // namespace

ValueId batched_gemm(GradBuilder& g, ValueId a, ValueId b, bool trans_a, bool trans_b) {
  return g.op("batched_gemm", {a, b}, {{"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}});
}

BatchedProduct product_gradients(GradBuilder& g, const ProductNode& p) {
  // y = op(a) op(b): d op(a) = dy op(b)', d op(b) = op(a)' dy; for a transposed operand the product is
  // transposed.
  const ValueId da =
      p.trans_a ? batched_gemm(g, p.b, p.dy, p.trans_b, true) : batched_gemm(g, p.dy, p.b, false, !p.trans_b);
  const ValueId db =
      p.trans_b ? batched_gemm(g, p.dy, p.a, true, p.trans_a) : batched_gemm(g, p.a, p.dy, !p.trans_a, false);
  return {da, db};
}

MatmulShape batched_gemm_shape(const ir::NodeView& node) {
  const Dims a = oriented(node.in[0].shape, is_set(node.attrs, "transA")).to_dims();
  const Dims b = oriented(node.in[1].shape, is_set(node.attrs, "transB")).to_dims();
  return matmul_shape(a, b);
}

ir::OpSchema batched_gemm_schema() {
  return {
      .name = "batched_gemm",
      .doc =
          "y = op(a) op(b) for every batch, op transposes the last two axes by transA and transB; batches "
          "broadcast",
      .cut = matmul_cut,
      .min_in = 2,
      .max_in = 2,
      .attrs = {{"transA", "int", "a is [..., k, m]"}, {"transB", "int", "b is [..., n, k]"}},
      .infer = infer_batched_gemm,
      .expand = expand_batched_gemm,
      .cost =
          [](const ir::NodeView& n) {
            ir::Cost cost = matmul_cost(n, 0, 1);
            const double k = static_cast<double>(batched_gemm_shape(n).k);
            cost.flop = 2 * k * static_cast<double>(n.out[0].shape.elements().value_or(0));
            return cost;
          },
      .grad = rule(batched_gemm_gradients)};
}

}  // namespace trireme::ops
