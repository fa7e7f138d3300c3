// top_k on NVIDIA GPUs.
#include "backend/cuda/index/select.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// For more results, sorting is faster than selecting one after another.
constexpr int64_t kMost = 1024;

cuda::TopKArgs shape_of(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.size());
  const AxisLoops loops = axis_loops(x, axis);
  return {.outer = loops.outer,
          .n = loops.n,
          .inner = loops.inner,
          .k = n.out_dims(0)[axis],
          .is_largest = n.attrs.get_int("largest", 1) != 0};
}

ir::Kernel top_k() {
  ir::Kernel k{.name = "one_by_one"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), n.in_dims(0).size());
    if (n.out_dims(0)[axis] > kMost) return "more than 1024 are asked for, of too many to sort";
    if (n.in_dims(0)[axis] > UINT32_MAX) return "more than 2^32 elements to choose from";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::i32});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::TopKArgs shape = shape_of(n);
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

/// Sorts all rows together: n log^2 n exchanges instead of k passes over a row.
ir::Kernel sorted_top_k() {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    constexpr int64_t kFew = 128;  // a sort costs about as many passes over a row
    const cuda::TopKArgs shape = shape_of(n);
    if (shape.k <= kFew) return "few are asked for";
    // Row and index share 32 bits of a key.
    if (shape.outer * shape.inner * 2 * shape.n > INT32_MAX) return "2^30 elements to choose from";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::i32});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const cuda::TopKArgs shape = shape_of(init.node);
    const bool has_places = init.node.out.size() > 1;
    auto run = [shape, has_places, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      cuda::TopKArgs a = shape;
      a.x = args.in[0];
      a.y = args.out[0];
      a.places = has_places ? out_ptr<int64_t>(args, 1) : nullptr;
      cuda::top_k_sorted({args.stream, dtype}, a, args.workspace);
    };
    return ir::BoundKernel{run, cuda::top_k_sorted_workspace_bytes(shape)};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> sort_cuda_kernels() { return {{"top_k", {sorted_top_k(), top_k()}}}; }

}  // namespace trireme::ops
