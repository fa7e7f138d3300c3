// top_k on NVIDIA GPUs.
#include "backend/cuda/select.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Beyond this a sort would be faster than taking one after another.
constexpr int64_t kMost = 1024;

ir::Kernel top_k() {
  ir::Kernel k{.name = "one_by_one"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), n.in_dims(0).size());
    if (n.out_dims(0)[axis] > kMost) return "more than 1024 are asked for";
    if (n.in_dims(0)[axis] > UINT32_MAX) return "more than 2^32 elements to choose from";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::i32});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const tensor::Dims x = n.in_dims(0);
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.size());
    const AxisLoops loops = axis_loops(x, axis);
    const cuda::TopKArgs shape{.outer = loops.outer,
                               .n = loops.n,
                               .inner = loops.inner,
                               .k = n.out_dims(0)[axis],
                               .is_largest = n.attrs.get_int("largest", 1) != 0};
    const DType dtype = n.in[0].dtype;
    const bool has_places = n.out.size() > 1;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::TopKArgs a = shape;
      a.x = args.in[0];
      a.y = args.out[0];
      a.places = has_places ? out_ptr<int64_t>(args, 1) : nullptr;
      cuda::top_k({args.stream, dtype}, a);
    }};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> sort_cuda_kernels() { return {{"top_k", {top_k()}}}; }

}  // namespace trireme::ops
