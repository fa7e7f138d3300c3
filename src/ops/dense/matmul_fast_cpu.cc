// f32 kernels of matmul and gemm with packed or batched register tiles.
#include "backend/cpu/device/cpu_stream.h"
#include "ops/dense/blocks_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/dense/matmul_fast.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

ir::Refusal refuse_packed_matmul(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  if (node.value(1) == nullptr) return "operand 1 is not constant";
  if (node.in[1].shape.rank() != 2) return "operand 1 is not a matrix";
  return std::nullopt;
}

ir::BoundKernel bind_packed(const ir::KernelInit& init, cpu::GemmArgs gemm, bool transposed, bool biased) {
  const Dims w = init.node.in_dims(1);
  const int64_t k = w[transposed ? 1 : 0], n = w[transposed ? 0 : 1];
  ir::BoundKernel bound{
      .workspace_bytes = static_cast<int64_t>(cpu::gemm_workspace_bytes(gemm.m, k, n, init.threads)),
      .unread_inputs = 1u << 1};
  const auto packed = pack_matrix(init, *init.node.value(1), transposed);
  if (packed == nullptr) return bound;
  gemm.b = packed->matrix;
  bound.run = [gemm, packed, biased](const ir::RunArgs& args) {
    cpu::GemmArgs call = gemm;
    call.a = in_ptr<float>(args, 0);
    call.c = out_ptr<float>(args, 0);
    call.epilogue.bias = biased ? in_ptr<float>(args, 2) : nullptr;
    cpu::gemm(call, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_packed_matmul(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0), w = init.node.in_dims(1);
  const cpu::GemmArgs gemm{.m = product(x, 0, x.size() - 1), .lda = w[0], .ldc = w[1]};
  return bind_packed(init, gemm, false, false);
}

ir::Refusal refuse_batched_matmul(const ir::NodeView& node) {
  if (auto why = refuse_blocks(node)) return why;
  if (!batch_strides(matmul_shape(node.in_dims(0), node.in_dims(1))))
    return "the batch broadcast does not reduce to two strides";
  return std::nullopt;
}

/// If b is one matrix, the rows of all batches form one product.
ir::BoundKernel prepare_batched_matmul(const ir::KernelInit& init) {
  const Dims a = init.node.in_dims(0), b = init.node.in_dims(1);
  cpu::BlockProduct product;
  if (b.size() == 2 && a.size() >= 2) {
    product.m = trireme::ops::product(a, 0, a.size() - 1);
    product.k = b[0];
    product.n = b[1];
  } else {
    const MatmulShape shape = matmul_shape(a, b);
    product.m = shape.m;
    product.k = shape.k;
    product.n = shape.n;
    set_batches(product, *batch_strides(shape));
  }
  product.a.ld = product.k;
  product.b.ld = product.ldc = product.n;
  return bind_blocks(product, {}, init);
}

ir::Refusal refuse_c(const ir::NodeView& node) {
  if (!node.present(2)) return std::nullopt;
  if (node.attrs.get_float("beta", 1) != 1.0) return "beta is not 1";
  const Dims c = node.in_dims(2), y = node.out_dims(0);
  if (c != Dims{y[1]} && c != Dims{1, y[1]}) return "operand c is not one row";
  return std::nullopt;
}

ir::Refusal refuse_packed_gemm(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  if (node.value(1) == nullptr) return "operand b is not constant";
  if (node.attrs.get_int("transA", 0) != 0) return "operand a is transposed";
  if (node.attrs.get_float("alpha", 1) != 1.0) return "alpha is not 1";
  return refuse_c(node);
}

ir::BoundKernel prepare_packed_gemm(const ir::KernelInit& init) {
  const Dims x = init.node.in_dims(0), y = init.node.out_dims(0);
  const cpu::GemmArgs gemm{.m = x[0], .lda = x[1], .ldc = y[1]};
  return bind_packed(init, gemm, init.node.attrs.get_int("transB", 0) != 0, init.node.present(2));
}

ir::Refusal refuse_blocks_gemm(const ir::NodeView& node) {
  if (auto why = refuse_blocks(node)) return why;
  if (node.attrs.get_float("alpha", 1) != 1.0) return "alpha is not 1";
  return refuse_c(node);
}

ir::BoundKernel prepare_blocks_gemm(const ir::KernelInit& init) {
  const Dims a = init.node.in_dims(0), b = init.node.in_dims(1), y = init.node.out_dims(0);
  const bool ta = init.node.attrs.get_int("transA", 0) != 0, tb = init.node.attrs.get_int("transB", 0) != 0;
  const cpu::BlockProduct product{.m = y[0],
                                  .k = a[ta ? 0 : 1],
                                  .n = y[1],
                                  .a = {nullptr, a[1], ta},
                                  .b = {nullptr, b[1], tb},
                                  .ldc = y[1]};
  return bind_blocks(product, {0, 1, init.node.present(2) ? 2 : -1}, init);
}

}  // namespace

std::vector<ir::Kernel> matmul_fast_kernels() {
  return {{.name = "packed_gemm", .refuse = refuse_packed_matmul, .prepare = prepare_packed_matmul},
          {.name = "gemm_blocks", .refuse = refuse_batched_matmul, .prepare = prepare_batched_matmul}};
}

std::vector<ir::Kernel> gemm_fast_kernels() {
  return {{.name = "packed_gemm", .refuse = refuse_packed_gemm, .prepare = prepare_packed_gemm},
          {.name = "gemm_blocks", .refuse = refuse_blocks_gemm, .prepare = prepare_blocks_gemm}};
}

}  // namespace trireme::ops
