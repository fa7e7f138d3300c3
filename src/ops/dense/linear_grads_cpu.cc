// Kernels of linear_grad_x and linear_grad_w on CPU.
#include "backend/cpu/device/cpu_stream.h"
#include "ops/dense/activation.h"
#include "ops/dense/bf16_cpu.h"
#include "ops/dense/linear_grads.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

template <class T>
void reference_dx_row(const LinearGradExtents& e, const ActivationSpec& act, const ir::RunArgs& args,
                      int64_t row) {
  const T *dy = in_ptr<T>(args, 0) + row * e.n, *w = in_ptr<T>(args, 1);
  const T* z = act.kind == ActivationKind::none ? nullptr : in_ptr<T>(args, 2);
  T* dx = out_ptr<T>(args, 0) + row * e.k;
  for (int64_t i = 0; i < e.k; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < e.n; ++j)
      sum += double(dy[j]) * double(w[e.transposed ? j * e.k + i : i * e.n + j]);
    dx[i] = T(z == nullptr ? sum : sum * activation_slope(act, double(z[row * e.k + i])));
  }
}

/// Computes row `i` of dw in [k, n] form; row k stands for the bias.
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
  const ActivationSpec act = activation_of(init.node.attrs);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return ir::BoundKernel{[e, act](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(e.m, [&](int64_t row) {
        reference_dx_row<decltype(t)>(e, act, args, row);
      });
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
template <class Product>
Product product_x(const ir::NodeView& node) {
  const LinearGradExtents e = linear_grad_x_extents(node);
  return {.m = e.m,
          .k = e.n,
          .n = e.k,
          .a = {nullptr, e.n},
          .b = {nullptr, e.transposed ? e.k : e.n, !e.transposed},
          .ldc = e.k};
}

ir::BoundKernel prepare_blocks_x(const ir::KernelInit& init) {
  return bind_blocks(product_x<cpu::BlockProduct>(init.node), {0, 1}, init);
}

ir::BoundKernel prepare_bf16_x(const ir::KernelInit& init) {
  return bind_bf16(product_x<cpu::Bf16Product>(init.node), {0, 1}, init);
}

/// dw [k, n] = x' dy, or [n, k] = dy' x; dy is summed while its blocks are packed. `asked` may be any
/// non-null address, since the launch sets the real one.
template <class Product, class T>
Product product_w(const ir::NodeView& node, T* asked) {
  const LinearGradExtents e = linear_grad_w_extents(node);
  Product product{.m = e.transposed ? e.n : e.k, .k = e.m, .n = e.transposed ? e.k : e.n};
  product.a = {nullptr, product.m, true};
  product.b = {nullptr, product.n, false};
  product.ldc = product.n;
  if (node.out.size() > 1) (e.transposed ? product.row_sums : product.column_sums) = asked;
  return product;
}

BlockOperands operands_w(const ir::NodeView& node) {
  const bool transposed = linear_grad_w_extents(node).transposed;
  return {transposed ? 1 : 0, transposed ? 0 : 1};
}

ir::BoundKernel prepare_blocks_w(const ir::KernelInit& init) {
  float asked = 0;
  return bind_blocks(product_w<cpu::BlockProduct>(init.node, &asked), operands_w(init.node), init);
}

ir::BoundKernel prepare_bf16_w(const ir::KernelInit& init) {
  uint16_t asked = 0;
  auto product = product_w<cpu::Bf16Product>(init.node, &asked);
  product.is_wide = init.node.out[0].dtype == tensor::DType::f32;
  return bind_bf16(product, operands_w(init.node), init);
}

}  // namespace

std::vector<ir::Kernel> linear_grad_x_cpu_kernels() {
  const auto plain = [](const ir::NodeView& node, ir::Refusal (*rest)(const ir::NodeView&)) -> ir::Refusal {
    if (node.present(2)) return "no slope of an activation behind the product";
    return rest(node);
  };
  const ir::Kernel blocks{.name = "gemm_blocks",
                          .refuse = [=](const ir::NodeView& n) { return plain(n, refuse_blocks); },
                          .prepare = prepare_blocks_x};
  const ir::Kernel bf16{.name = "gemm_bf16",
                        .refuse = [=](const ir::NodeView& n) { return plain(n, refuse_bf16); },
                        .prepare = prepare_bf16_x};
  return with_bf16(faster({blocks}, float_reference(prepare_reference_x)), bf16);
}

std::vector<ir::Kernel> linear_grad_w_cpu_kernels() {
  const ir::Kernel blocks{.name = "gemm_blocks", .refuse = refuse_blocks, .prepare = prepare_blocks_w};
  const ir::Kernel bf16{.name = "gemm_bf16", .refuse = refuse_bf16, .prepare = prepare_bf16_w};
  return with_bf16(faster({blocks}, float_reference(prepare_reference_w)), bf16);
}

}  // namespace trireme::ops
