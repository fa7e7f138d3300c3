// Kernels of softmax, its logarithm and their gradients on NVIDIA GPUs.
#include "backend/cuda/norm/softmax.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/softmax/softmax_kernels.h"

namespace trireme::ops {
namespace {

ir::Refusal refuse_types(const ir::NodeView& node) {
  return refuse_dtype(node, 0, {tensor::DType::f32, tensor::DType::f16, tensor::DType::bf16});
}

ir::Kernel softmax_kernel(bool log) {
  auto prepare = [log](const ir::KernelInit& init) {
    const AxisLoops loops = softmax_loops(init.node);
    const tensor::DType dtype = init.node.in[0].dtype;
    return ir::BoundKernel{[loops, dtype, log](const ir::RunArgs& args) {
      cuda::softmax({args.stream, dtype}, {args.in[0], args.out[0], loops.outer, loops.n, loops.inner, log});
    }};
  };
  return {.name = "rows", .refuse = refuse_types, .prepare = prepare, .may_overwrite = 1};
}

/// The operands are dy and y.
ir::Kernel gradient_kernel(bool log) {
  auto prepare = [log](const ir::KernelInit& init) {
    const AxisLoops loops = softmax_loops(init.node);
    const tensor::DType dtype = init.node.in[0].dtype;
    return ir::BoundKernel{[loops, dtype, log](const ir::RunArgs& args) {
      cuda::softmax_grad({args.stream, dtype},
                         {args.in[1], args.out[0], loops.outer, loops.n, loops.inner, log}, args.in[0]);
    }};
  };
  return {.name = "rows", .refuse = refuse_types, .prepare = prepare, .may_overwrite = 0b11};
}

}  // namespace

std::vector<CudaKernels> softmaxes_cuda_kernels() {
  return {{"softmax", {softmax_kernel(false)}},
          {"log_softmax", {softmax_kernel(true)}},
          {"softmax_grad", {gradient_kernel(false)}},
          {"log_softmax_grad", {gradient_kernel(true)}}};
}

}  // namespace trireme::ops
