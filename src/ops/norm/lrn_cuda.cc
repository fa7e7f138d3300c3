// lrn and its gradient on NVIDIA GPUs.
#include "backend/cuda/image/lrn.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// The shape of operand i.
cuda::LrnShape shape_of(const ir::NodeView& n, size_t i) {
  const tensor::Dims x = n.in_dims(i);
  return {.batch = x[0],
          .channels = x[1],
          .points = product(x, 2, x.size()),
          .size = n.attrs.need_int("size"),
          .alpha = static_cast<float>(n.attrs.get_float("alpha", 1e-4)),
          .beta = static_cast<float>(n.attrs.get_float("beta", 0.75)),
          .bias = static_cast<float>(n.attrs.get_float("bias", 1))};
}

ir::Refusal refuse_lrn_on_gpu(const ir::NodeView& n) {
  return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
}

ir::BoundKernel prepare_lrn_on_gpu(const ir::KernelInit& init) {
  const cuda::LrnShape shape = shape_of(init.node, 0);
  return {[shape, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
    cuda::lrn({args.stream, dtype}, shape, args.in[0], args.out[0]);
  }};
}

/// The operands are dy and x.
ir::BoundKernel prepare_grad(const ir::KernelInit& init) {
  const cuda::LrnShape shape = shape_of(init.node, 1);
  return {[shape, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
            cuda::lrn_grad(
                {args.stream, dtype}, shape,
                {.dy = args.in[0], .x = args.in[1], .dx = args.out[0], .workspace = args.workspace});
          },
          cuda::lrn_grad_workspace_bytes(shape)};
}

}  // namespace

std::vector<CudaKernels> lrn_cuda_kernels() {
  return {{"lrn", {{.name = "elements", .refuse = refuse_lrn_on_gpu, .prepare = prepare_lrn_on_gpu}}},
          {"lrn_grad", {{.name = "two_passes", .refuse = refuse_lrn_on_gpu, .prepare = prepare_grad}}}};
}

}  // namespace trireme::ops
