// Kernels of dense products on NVIDIA GPUs.
#include "ops/cuda_kernels.h"
#include "ops/dense/batch_strides.h"
#include "ops/dense/batched_gemm.h"
#include "ops/dense/gemm_cuda.h"
#include "ops/dense/linear_grads.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

cuda::GemmShape typed(const ir::NodeView& node, int64_t m, int64_t n, int64_t k) {
  const DType type = node.in[0].dtype;
  return {.m = m, .n = n, .k = k, .in = type, .in_b = type, .out = type};
}

/// If b is one matrix, the rows of all batches form one product.
MatmulShape matmul_batches(const ir::NodeView& node) {
  const Dims a = node.in_dims(0), b = node.in_dims(1);
  if (b.size() == 2 && a.size() > 2) return matmul_shape({product(a, 0, a.size() - 1), a.back()}, b);
  return matmul_shape(a, b);
}

ir::Refusal refuse_batches(const ir::NodeView& node, const MatmulShape& s) {
  if (auto why = refuse_products(node, /*with_f64=*/true)) return why;
  if (node.in[0].dtype == DType::f64 && s.k == 0) return "sums of nothing in f64";
  if (s.batches() > 0 && !batch_strides(s)) return "the batch broadcast does not reduce to two strides";
  return std::nullopt;
}

ir::BoundKernel bind_batches(const ir::KernelInit& init, const MatmulShape& s) {
  cuda::GemmShape shape = typed(init.node, s.m, s.n, s.k);
  shape.transpose_a = is_set(init.node.attrs, "transA");
  shape.transpose_b = is_set(init.node.attrs, "transB");
  if (s.batches() == 0) {
    shape.outer = 0;
  } else {
    set_batches(shape, s);
  }
  return bind_gemm(init, shape, {});
}

ir::Kernel matmul_kernel() {
  return {
      .name = "gemm",
      .refuse = [](const ir::NodeView& node) { return refuse_batches(node, matmul_batches(node)); },
      .prepare = [](const ir::KernelInit& init) { return bind_batches(init, matmul_batches(init.node)); }};
}

ir::Kernel batched_gemm_kernel() {
  return {.name = "gemm",
          .refuse = [](const ir::NodeView& node) { return refuse_batches(node, batched_gemm_shape(node)); },
          .prepare =
              [](const ir::KernelInit& init) { return bind_batches(init, batched_gemm_shape(init.node)); }};
}

/// y = alpha op(a) op(b) + beta c, c broadcast to [m, n].
ir::BoundKernel prepare_gemm_op(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const Dims y = node.out_dims(0);
  cuda::GemmShape shape =
      typed(node, y[0], y[1], is_set(node.attrs, "transA") ? node.in_dims(0)[0] : node.in_dims(0)[1]);
  shape.transpose_a = is_set(node.attrs, "transA");
  shape.transpose_b = is_set(node.attrs, "transB");
  shape.alpha = static_cast<float>(node.attrs.get_float("alpha", 1));
  if (!node.present(2)) return bind_gemm(init, shape, {});
  const auto strides = broadcast_strides(node.in_dims(2), 2);
  const auto beta = static_cast<float>(node.attrs.get_float("beta", 1));
  if (strides[0] == 0 && strides[1] == 1 && beta == 1) {
    shape.finish.bias = true;
    return bind_gemm(init, shape, {.bias = 2});
  }
  shape.finish.residual = true;
  shape.finish.residual_row = strides[0];
  shape.finish.residual_column = strides[1];
  shape.finish.beta = beta;
  return bind_gemm(init, shape, {.residual = 2});
}

ir::BoundKernel prepare_linear(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const Dims x = node.in_dims(0), y = node.out_dims(0);
  const ActivationSpec act = activation_of(node.attrs);
  cuda::GemmShape shape = typed(node, product(x, 0, x.size() - 1), y.back(), x.back());
  shape.transpose_b = is_set(node.attrs, "transposed");
  shape.finish.bias = node.present(2);
  shape.finish.residual = node.present(3);
  shape.finish.residual_row = shape.n;
  shape.finish.residual_column = 1;
  shape.finish.act = activation_form(act);
  shape.finish.act_before_residual = act.before_residual;
  // The type of a result that nobody reads is empty.
  shape.finish.writes_aux = node.out.size() > 1 && node.out[1] == node.out[0];
  return bind_gemm(init, shape,
                   {.bias = node.present(2) ? 2 : -1,
                    .residual = node.present(3) ? 3 : -1,
                    .aux_out = shape.finish.writes_aux ? 1 : -1});
}

/// dx [m, k] = dy [m, n] w', times act'(z).
ir::BoundKernel prepare_grad_x(const ir::KernelInit& init) {
  const LinearGradExtents e = linear_grad_x_extents(init.node);
  cuda::GemmShape shape = typed(init.node, e.m, e.k, e.n);
  shape.transpose_b = !e.transposed;
  shape.finish.act = activation_form(activation_of(init.node.attrs));
  shape.finish.is_gradient = init.node.present(2);
  return bind_gemm(init, shape, {.aux = shape.finish.is_gradient ? 2 : -1});
}

/// dw [k, n] = x' dy, or [n, k] = dy' x; dbias is the sum of dy over the rows.
ir::BoundKernel prepare_grad_w(const ir::KernelInit& init) {
  const LinearGradExtents e = linear_grad_w_extents(init.node);
  cuda::GemmShape shape = typed(init.node, e.transposed ? e.n : e.k, e.transposed ? e.k : e.n, e.m);
  shape.out = init.node.out[0].dtype;
  shape.transpose_a = true;
  GemmOperands operands{.a = e.transposed ? 1 : 0, .b = e.transposed ? 0 : 1};
  if (init.node.out.size() > 1) {
    shape.finish.sums = e.transposed ? cuda::SumsOf::a : cuda::SumsOf::b;
    operands.sums = 1;
  }
  return bind_gemm(init, shape, operands);
}

ir::Kernel float_kernel(PrepareFn prepare) {
  return {.name = "gemm",
          .refuse = [](const ir::NodeView& node) { return refuse_products(node); },
          .prepare = std::move(prepare)};
}

}  // namespace

std::vector<CudaKernels> dense_cuda_kernels() {
  return {{"matmul", {matmul_kernel()}},
          {"batched_gemm", {batched_gemm_kernel()}},
          {"gemm", {float_kernel(prepare_gemm_op)}},
          {"linear", {float_kernel(prepare_linear)}},
          {"linear_grad_x", {float_kernel(prepare_grad_x)}},
          {"linear_grad_w", {float_kernel(prepare_grad_w)}}};
}

}  // namespace trireme::ops
