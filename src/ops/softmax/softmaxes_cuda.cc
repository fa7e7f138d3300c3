// Kernels of softmax on NVIDIA GPUs.
#include "backend/cuda/kernels.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

AxisLoops loops_of(const ir::NodeView& node) {
  const tensor::Dims dims = node.in_dims(0);
  if (dims.empty()) return {};
  return axis_loops(dims, ir::normal_axis(node.attrs.get_int("axis", -1), dims.size()));
}

/// The device's kernels take rows whose elements are neighbours.
ir::Refusal refuse_inner(const ir::NodeView& node) {
  if (loops_of(node).inner != 1) return "the axis is not the innermost";
  return refuse_dtype(node, 0, {tensor::DType::f32, tensor::DType::f16, tensor::DType::bf16});
}

ir::Kernel softmax_rows() {
  auto prepare = [](const ir::KernelInit& init) {
    const AxisLoops loops = loops_of(init.node);
    const tensor::DType dtype = init.node.in[0].dtype;
    return ir::BoundKernel{[loops, dtype](const ir::RunArgs& args) {
      cuda::softmax({args.stream, dtype}, {args.in[0], args.out[0], loops.outer, loops.n});
    }};
  };
  return {.name = "rows", .refuse = refuse_inner, .prepare = prepare, .may_overwrite = 1};
}

}  // namespace

std::vector<CudaKernels> softmaxes_cuda_kernels() { return {{"softmax", {softmax_rows()}}}; }

}  // namespace trireme::ops
