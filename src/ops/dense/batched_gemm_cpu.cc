// Kernels of batched_gemm on CPU.
#include "backend/cpu/device/cpu_stream.h"
#include "ops/dense/batched_gemm.h"
#include "ops/dense/blocks_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

struct BatchedPlan {
  MatmulShape shape;
  int64_t a_row, a_k, b_k, b_col;  // strides after transposition
};

BatchedPlan batched_plan(const ir::NodeView& node) {
  BatchedPlan p{.shape = batched_gemm_shape(node)};
  const bool ta = node.attrs.get_int("transA", 0) != 0, tb = node.attrs.get_int("transB", 0) != 0;
  p.a_row = ta ? 1 : p.shape.k;
  p.a_k = ta ? p.shape.m : 1;
  p.b_k = tb ? 1 : p.shape.n;
  p.b_col = tb ? p.shape.k : 1;
  return p;
}

template <class T>
void batched_reference_row(const BatchedPlan& p, const ir::RunArgs& args, int64_t row) {
  const MatmulShape& s = p.shape;
  const size_t batch = static_cast<size_t>(row / s.m);
  const T* a = in_ptr<T>(args, 0) + s.a_offset[batch] + row % s.m * p.a_row;
  const T* b = in_ptr<T>(args, 1) + s.b_offset[batch];
  T* y = out_ptr<T>(args, 0) + row * s.n;
  for (int64_t j = 0; j < s.n; ++j) {
    double sum = 0;
    for (int64_t l = 0; l < s.k; ++l) sum += double(a[l * p.a_k]) * double(b[l * p.b_k + j * p.b_col]);
    y[j] = T(sum);
  }
}

ir::BoundKernel prepare_batched_reference(const ir::KernelInit& init) {
  const BatchedPlan plan = batched_plan(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).run(plan.shape.batches() * plan.shape.m, [&](int64_t row) {
        batched_reference_row<decltype(t)>(plan, args, row);
      });
    }};
  });
}

ir::Refusal refuse_batched_blocks(const ir::NodeView& node) {
  if (auto why = refuse_blocks(node)) return why;
  if (!batch_strides(batched_gemm_shape(node))) return "the batch broadcast does not reduce to two strides";
  return std::nullopt;
}

ir::BoundKernel prepare_batched_blocks(const ir::KernelInit& init) {
  const BatchedPlan p = batched_plan(init.node);
  cpu::BlockProduct product{.m = p.shape.m, .k = p.shape.k, .n = p.shape.n};
  const bool ta = init.node.attrs.get_int("transA", 0) != 0, tb = init.node.attrs.get_int("transB", 0) != 0;
  product.a = {nullptr, ta ? p.a_k : p.a_row, ta};
  product.b = {nullptr, tb ? p.b_col : p.b_k, tb};
  product.ldc = p.shape.n;
  set_batches(product, *batch_strides(p.shape));
  return bind_blocks(product, {}, init);
}

}  // namespace

std::vector<ir::Kernel> batched_gemm_cpu_kernels() {
  const ir::Kernel blocks{
      .name = "gemm_blocks", .refuse = refuse_batched_blocks, .prepare = prepare_batched_blocks};
  return faster({blocks}, float_reference(prepare_batched_reference));
}

}  // namespace trireme::ops
