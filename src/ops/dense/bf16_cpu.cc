// Binds nodes to gemm_bf16.
#include "ops/dense/bf16_cpu.h"

#include <algorithm>

namespace trireme::ops {

ir::BoundKernel bind_bf16(const cpu::Bf16Product& product, BlockOperands operands,
                          const ir::KernelInit& init) {
  const auto bytes = static_cast<int64_t>(cpu::gemm_bf16_workspace_bytes(product, init.threads));
  const size_t results = init.node.out.size();
  auto run = [product, operands, results](const ir::RunArgs& args) {
    auto at = [&](int i) { return i < 0 ? nullptr : in_ptr<uint16_t>(args, static_cast<size_t>(i)); };
    cpu::Bf16Product call = product;
    call.a.data = at(operands.a);
    call.b.data = at(operands.b);
    call.c = args.out[0];
    call.bias = at(operands.bias);
    call.residual = at(operands.residual);
    void* sums = results > 1 ? args.out[1] : nullptr;
    if (call.row_sums != nullptr) call.row_sums = sums;
    if (call.column_sums != nullptr) call.column_sums = sums;
    cpu::gemm_bf16(call, args.workspace, cpu::pool_of(args.stream));
  };
  return {run, bytes};
}

ir::Refusal refuse_bf16(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (!node.present(i)) continue;
    if (auto why = refuse_dtype(node, i, {tensor::DType::bf16})) return why;
  }
  if (!cpu::has_bf16_products()) return "the processor has no bf16 products";
  return std::nullopt;
}

std::vector<ir::Kernel> with_bf16(std::vector<ir::Kernel> kernels, ir::Kernel kernel) {
  const auto at =
      std::find_if(kernels.begin(), kernels.end(), [](const ir::Kernel& k) { return k.is_via_f32; });
  kernels.insert(at, std::move(kernel));
  return kernels;
}

}  // namespace trireme::ops
