// matmul, gemm, matmul_integer: matrix products by NumPy rules, their types and cost.
#include "ops/dense/batched_gemm.h"
#include "ops/dense/dense_cuts.h"
#include "ops/dense/matmul_shape.h"
#include "ops/grad.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"
#include "ops/precision_rules.h"

namespace trireme::ops {

using tensor::Dim;
using tensor::Dims;
using tensor::DType;
using tensor::Shape;

Shape infer_matmul(const Shape& a, const Shape& b) {
  if (!a.has_rank() || !b.has_rank()) return Shape::unknown_rank();
  base::require(a.rank() >= 1 && b.rank() >= 1, "matrix product of a scalar: ", a.to_string(), " x ",
                b.to_string());
  const Dim& inner_a = a[a.rank() - 1];
  const Dim& inner_b = b[b.rank() == 1 ? 0 : b.rank() - 2];
  base::require(!inner_a.is_static() || !inner_b.is_static() || inner_a == inner_b,
                "inner extents differ: ", a.to_string(), " x ", b.to_string());
  auto lead = [](const Shape& s) {
    const auto end = s.dims().end() - static_cast<int64_t>(std::min<size_t>(2, s.rank()));
    return Shape(std::vector<Dim>(s.dims().begin(), end));
  };
  std::vector<Dim> out = ir::broadcast(lead(a), lead(b)).dims();
  if (a.rank() > 1) out.push_back(a[a.rank() - 2]);
  if (b.rank() > 1) out.push_back(b[b.rank() - 1]);
  return Shape(std::move(out));
}

Dim lines_of(const Shape& s, size_t from_end) {
  if (!s.has_rank()) return Dim::unknown();
  return s.rank() > 1 ? s[s.rank() - from_end] : Dim(1);
}

void check_per_line(const ir::NodeView& n, size_t i, const Dim& lines) {
  const std::optional<int64_t> given = n.in[i].shape.elements();
  base::require(!given || *given == 1 || !lines.is_static() || *given == lines.value(), "operand ", i,
                " of shape ", n.in[i].shape.to_string(), " is neither one value nor one for each of ",
                lines.to_string(), " rows or columns");
}

MatmulShape matmul_shape(Dims a, Dims b) {
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  MatmulShape s{.m = a[a.size() - 2], .n = b.back(), .k = a.back(), .a_offset = {}, .b_offset = {}};
  base::require(b[b.size() - 2] == s.k, "inner extents differ: ", tensor::to_string(a), " x ",
                tensor::to_string(b));
  const Dims lead_a(a.begin(), a.end() - 2), lead_b(b.begin(), b.end() - 2);
  const Dims lead = ir::broadcast(Shape::of(lead_a), Shape::of(lead_b)).to_dims();
  const auto strides_a = broadcast_strides(lead_a, lead.size()),
             strides_b = broadcast_strides(lead_b, lead.size());
  const int64_t batches = tensor::element_count(lead);
  for (int64_t i = 0; i < batches; ++i) {
    int64_t rest = i, at_a = 0, at_b = 0;
    for (size_t d = lead.size(); d-- > 0;) {
      const int64_t index = rest % lead[d];
      rest /= lead[d];
      at_a += index * strides_a[d];
      at_b += index * strides_b[d];
    }
    s.a_offset.push_back(at_a * s.m * s.k);
    s.b_offset.push_back(at_b * s.k * s.n);
  }
  return s;
}

ir::Cost matmul_cost(const ir::NodeView& node, size_t a, size_t b) {
  ir::Cost cost;
  for (size_t i : {a, b}) cost.bytes += static_cast<double>(tensor::bytes_of(node.in[i]));
  cost.bytes += static_cast<double>(tensor::bytes_of(node.out[0]));
  const double k = static_cast<double>(node.in_dims(a).back());
  cost.flop = 2 * k * static_cast<double>(node.out[0].shape.elements().value_or(0));
  return cost;
}

namespace {

/// Vectors are promoted as in the product; if b is one matrix, the rows of all batches form one product.
Gradients matmul_grad(GradBuilder& g) {
  Dims a = g.dims(g.in(0)), b = g.dims(g.in(1)), y = g.dims(g.out());
  if (b.size() == 1) y.push_back(1), b.push_back(1);
  if (a.size() == 1) y.insert(y.end() - 1, 1), a.insert(a.begin(), 1);
  const ValueId dy = g.reshape(g.grad(), y);
  const ValueId left = g.reshape(g.in(0), a), right = g.reshape(g.in(1), b);
  if (b.size() == 2) {
    const ValueId da = g.op("linear_grad_x", {dy, right});
    return {g.reshape(da, g.dims(g.in(0))), g.reshape(g.op("linear_grad_w", {left, dy}), g.dims(g.in(1)))};
  }
  const BatchedProduct d = product_gradients(g, {left, right, dy});
  return {g.reshape(g.reduce_to(d.a, a), g.dims(g.in(0))), g.reshape(g.reduce_to(d.b, b), g.dims(g.in(1)))};
}

/// y = alpha op(a) op(b) + beta c.
Gradients gemm_grad(GradBuilder& g) {
  const bool ta = g.attrs().get_int("transA", 0) != 0, tb = g.attrs().get_int("transB", 0) != 0;
  const double alpha = g.attrs().get_float("alpha", 1), beta = g.attrs().get_float("beta", 1);
  const ValueId dy = alpha == 1 ? g.grad() : g.scaled(g.grad(), alpha);
  Gradients out = g.none();
  if (!ta) {
    const ir::Attrs attrs{{"transposed", int64_t{tb}}};
    out[0] = g.op("linear_grad_x", {dy, g.in(1)}, attrs);
    out[1] = g.op("linear_grad_w", {g.in(0), dy}, attrs);
  } else {
    const BatchedProduct d = product_gradients(g, {g.in(0), g.in(1), dy, ta, tb});
    out[0] = d.a;
    out[1] = d.b;
  }
  if (g.has(2)) out[2] = g.to_operand(beta == 1 ? g.grad() : g.scaled(g.grad(), beta), 2);
  return out;
}

}  // namespace

ir::OpSchema matmul_schema() {
  return {
      .name = "matmul",
      .doc =
          "y[..., i, j] = sum over l of a[..., i, l] b[..., l, j]; batches broadcast, vectors are promoted",
      .precision = kProduct,
      .dims = "...mk,...kn->...mn",
      .sums = "k",
      .cut = matmul_cut,
      .min_in = 2,
      .max_in = 2,
      .infer =
          [](const ir::NodeView& n) {
            base::require(n.in[0].dtype == n.in[1].dtype,
                          "operands of different types: ", name_of(n.in[0].dtype), " and ",
                          name_of(n.in[1].dtype));
            return std::vector<tensor::TensorType>{
                {n.in[0].dtype, infer_matmul(n.in[0].shape, n.in[1].shape)}};
          },
      .cost = [](const ir::NodeView& n) { return matmul_cost(n, 0, 1); },
      .grad = rule(matmul_grad),
      .onnx = "MatMul"};
}

namespace {

std::vector<tensor::TensorType> infer_gemm(const ir::NodeView& n) {
  const Shape &a = n.in[0].shape, &b = n.in[1].shape;
  if (!a.has_rank() || !b.has_rank()) return {{n.in[0].dtype, Shape::unknown(2)}};
  base::require(a.rank() == 2 && b.rank() == 2, "gemm takes matrices, got ", a.to_string(), " and ",
                b.to_string());
  const size_t ta = n.attrs.get_int("transA", 0) != 0, tb = n.attrs.get_int("transB", 0) != 0;
  const Dim &ka = a[1 - ta], &kb = b[tb];
  base::require(!ka.is_static() || !kb.is_static() || ka == kb, "inner extents differ: ", a.to_string(),
                " and ", b.to_string());
  const Shape out{a[ta], b[1 - tb]};
  if (n.present(2) && out.is_static() && n.in[2].shape.is_static()) {
    base::require(ir::broadcast(out, n.in[2].shape) == out, "C of shape ", n.in[2].shape.to_string(),
                  " does not broadcast to ", out.to_string());
  }
  return {{n.in[0].dtype, out}};
}

}  // namespace

ir::OpSchema gemm_schema() {
  return {.name = "gemm",
          .doc = "y = alpha op(a) op(b) + beta c, op transposes by transA and transB, c [m, n] broadcasts",
          .precision = kProduct,
          .is_product = true,
          .cut = gemm_cut,
          .min_in = 2,
          .max_in = 3,
          .attrs = {{"alpha", "float", "factor of the product, default 1"},
                    {"beta", "float", "factor of c, default 1"},
                    {"transA", "int", "a is [k, m]"},
                    {"transB", "int", "b is [n, k]"}},
          .infer = infer_gemm,
          .cost =
              [](const ir::NodeView& n) {
                ir::Cost cost = matmul_cost(n, 0, 1);
                const Dims a = n.in_dims(0);
                const double k = static_cast<double>(n.attrs.get_int("transA", 0) != 0 ? a[0] : a[1]);
                cost.flop = 2 * k * static_cast<double>(n.out[0].shape.elements().value_or(0));
                return cost;
              },
          .grad = rule(gemm_grad),
          .onnx = "Gemm"};
}

ir::OpSchema matmul_integer_schema() {
  return {.name = "matmul_integer",
          .doc = "y = (a - a_zero)(b - b_zero) in i32; a_zero per tensor or row, b_zero per tensor or column",
          .cut = matmul_cut,
          .min_in = 2,
          .max_in = 4,
          .infer =
              [](const ir::NodeView& n) {
                const Shape &a = n.in[0].shape, &b = n.in[1].shape;
                const Shape y = infer_matmul(a, b);
                if (n.present(2)) check_per_line(n, 2, lines_of(a, 2));
                if (n.present(3)) check_per_line(n, 3, lines_of(b, 1));
                return std::vector<tensor::TensorType>{{DType::i32, y}};
              },
          .cost = [](const ir::NodeView& n) { return matmul_cost(n, 0, 1); },
          .why_no_grad = "integer product: its operands are quantized values",
          .onnx = "MatMulInteger"};
}

}  // namespace trireme::ops
