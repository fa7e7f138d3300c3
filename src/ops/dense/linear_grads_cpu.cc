// Kernels of linear_grad_x and linear_grad_w on CPU.
#include "backend/cpu/cpu_stream.h"
#include "ops/dense/blocks_cpu.h"
#include "ops/dense/linear_grads.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

template <class T>
void reference_dx_row(const LinearGradExtents& e, const ir::RunArgs& args, int64_t row) {
  const T *dy = in_ptr<T>(args, 0) + row * e.n, *w = in_ptr<T>(args, 1);
  T* dx = out_ptr<T>(args, 0) + row * e.k;
  for (int64_t i = 0; i < e.k; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < e.n; ++j)
      sum += double(dy[j]) * double(w[e.transposed ? j * e.k + i : i * e.n + j]);
    dx[i] = T(sum);
  }
}

/// Row `i` of w's [k, n] form; row k stands for the bias.
template <class T>
void reference_dw_row(const LinearGradExtents& e, const ir::RunArgs& args, int64_t i) {
  const T *x = in_ptr<T>(args, 0), *dy = in_ptr<T>(args, 1);
  for (int64_t j = 0; j < e.n; ++j) {
    double sum = 0;
    for (int64_t row = 0; row < e.m; ++row)
      sum += (i == e.k ? 1.0 : double(x[row * e.k + i])) * double(dy[row * e.n + j]);
    if (i == e.k) {
      out_ptr<T>(args, 1)[j] = T(sum);
    } else {
      out_ptr<T>(args, 0)[e.transposed ? j * e.k + i : i * e.n + j] = T(sum);
    }
  }
}

ir::BoundKernel prepare_reference_x(const ir::KernelInit& init) {
  const LinearGradExtents e = linear_grad_x_extents(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return ir::BoundKernel{[e](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(e.m, [&](int64_t row) { reference_dx_row<decltype(t)>(e, args, row); });
    }};
  });
}

ir::BoundKernel prepare_reference_w(const ir::KernelInit& init) {
  const LinearGradExtents e = linear_grad_w_extents(init.node);
  const bool with_bias = init.node.out.size() > 1;
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return ir::BoundKernel{[e, with_bias](const ir::RunArgs& args) {
      const int64_t rows = e.k + (with_bias && args.out[1] != nullptr ? 1 : 0);
      cpu::pool_of(args.stream).run(rows, [&](int64_t i) { reference_dw_row<decltype(t)>(e, args, i); });
    }};
  });
}

/// dx [m, k] = dy [m, n] w'.
ir::BoundKernel prepare_blocks_x(const ir::KernelInit& init) {
  const LinearGradExtents e = linear_grad_x_extents(init.node);
  const cpu::BlockProduct product{.m = e.m,
                                  .k = e.n,
                                  .n = e.k,
                                  .a = {nullptr, e.n},
                                  .b = {nullptr, e.transposed ? e.k : e.n, !e.transposed},
                                  .ldc = e.k};
  return bind_blocks(product, {0, 1}, init);
}

/// dw [k, n] = x' dy, or [n, k] = dy' x; the sums of dy are taken while its blocks are packed.
ir::BoundKernel prepare_blocks_w(const ir::KernelInit& init) {
  const LinearGradExtents e = linear_grad_w_extents(init.node);
  float asked = 0;  // any address: the launch brings the real one
  cpu::BlockProduct product{.k = e.m};
  if (e.transposed) {
    product.m = e.n;
    product.n = e.k;
  } else {
    product.m = e.k;
    product.n = e.n;
  }
  product.a = {nullptr, product.m, true};
  product.b = {nullptr, product.n, false};
  product.ldc = product.n;
  if (init.node.out.size() > 1) (e.transposed ? product.row_sums : product.column_sums) = &asked;
  return bind_blocks(product, {e.transposed ? 1 : 0, e.transposed ? 0 : 1}, init);
}

}  // namespace

std::vector<ir::Kernel> linear_grad_x_cpu_kernels() {
  const ir::Kernel blocks{.name = "gemm_blocks", .refuse = refuse_blocks, .prepare = prepare_blocks_x};
  return faster({blocks}, float_reference(prepare_reference_x));
}

std::vector<ir::Kernel> linear_grad_w_cpu_kernels() {
  const ir::Kernel blocks{.name = "gemm_blocks", .refuse = refuse_blocks, .prepare = prepare_blocks_w};
  return faster({blocks}, float_reference(prepare_reference_w));
}

}  // namespace trireme::ops
