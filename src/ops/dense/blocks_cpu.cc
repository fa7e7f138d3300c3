// Binds nodes to gemm_blocks.
#include "ops/dense/blocks_cpu.h"

namespace trireme::ops {

ir::BoundKernel bind_blocks(const cpu::BlockProduct& product, BlockOperands operands,
                            const ir::KernelInit& init) {
  const auto bytes = static_cast<int64_t>(cpu::gemm_blocks_workspace_bytes(product, init.threads));
  const size_t results = init.node.out.size();
  auto run = [product, operands, results](const ir::RunArgs& args) {
    auto at = [&](int i) { return i < 0 ? nullptr : in_ptr<float>(args, static_cast<size_t>(i)); };
    cpu::BlockProduct call = product;
    call.a.data = at(operands.a);
    call.b.data = at(operands.b);
    call.c = out_ptr<float>(args, 0);
    call.epilogue.bias = at(operands.bias);
    call.epilogue.residual = at(operands.residual);
    float* sums = results > 1 ? out_ptr<float>(args, 1) : nullptr;
    if (call.row_sums != nullptr) call.row_sums = sums;
    if (call.column_sums != nullptr) call.column_sums = sums;
    cpu::gemm_blocks(call, args.workspace, cpu::pool_of(args.stream));
  };
  return {run, bytes};
}

void set_batches(cpu::BlockProduct& p, const BatchStrides& s) {
  p.outer = s.outer;
  p.inner = s.inner;
  p.a.outer = s.a_outer;
  p.a.inner = s.a_inner;
  p.b.outer = s.b_outer;
  p.b.inner = s.b_inner;
  p.c_inner = p.m * p.n;
  p.c_outer = s.inner * p.c_inner;
}

ir::Refusal refuse_blocks(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {tensor::DType::f32})) return why;
  }
  return std::nullopt;
}

}  // namespace trireme::ops
