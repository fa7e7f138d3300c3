// Pooling and its gradients on NVIDIA GPUs, channels first and last; pooling of whole planes is a reduction.
#include "backend/cuda/image/pool.h"
#include "backend/cuda/norm/reduce.h"
#include "ops/conv/window.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using cuda::PoolKind;
using cuda::PoolShape;
using tensor::DType;

ir::Refusal refuse_types(const ir::NodeView& n) {
  for (const auto* types : {&n.in, &n.out}) {
    const tensor::Dims dims = (*types)[0].shape.to_dims();
    if (product(dims, 1, dims.size()) >= cuda::kPoolImage) return "an image of 2^31 elements";
  }
  return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::f64});
}

/// The pooling of x, which is [n, c, spatial...] or, with channels last, [n, h, w, c].
PoolShape shape_of(const ir::NodeView& n, const tensor::Dims& x, PoolKind kind, bool channels_last) {
  PoolShape s{.images = x[0], .channels = channels_last ? x[3] : x[1], .channels_last = channels_last};
  const tensor::Dims spatial =
      channels_last ? tensor::Dims{x[1], x[2]} : tensor::Dims{x.begin() + 2, x.end()};
  const Window window = make_window(n.attrs, {}, spatial);
  for (size_t d = 0; d < 3; ++d) {
    const WindowAxis& a = window[d];
    const auto small = [](int64_t v) { return static_cast<int32_t>(v); };
    s.axes[d] = {small(a.in),       small(a.out),       small(a.kernel), small(a.stride),
                 small(a.dilation), small(a.pad_begin), small(a.pad_end)};
  }
  s.kind = kind;
  s.count_padding = n.attrs.get_int("count_include_pad", 0) != 0;
  s.is_sum = n.attrs.get_int("sum", 0) != 0;
  s.rectified = n.attrs.get_int("rectified", 0) != 0;
  s.column_major = n.attrs.get_int("storage_order", 0) != 0;
  s.p = n.attrs.get_int("p", 2);
  return s;
}

ir::Kernel forward(PoolKind kind, bool channels_last) {
  ir::Kernel k{.name = "windows"};
  k.refuse = refuse_types;
  k.prepare = [=](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const PoolShape shape = shape_of(n, n.in_dims(0), kind, channels_last);
    const DType dtype = n.in[0].dtype;
    const bool indexed = n.out.size() > 1;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::pool({args.stream, dtype}, shape, args.in[0], args.out[0],
                 indexed ? out_ptr<int64_t>(args, 1) : nullptr);
    }};
  };
  return k;
}

/// The operands are x and dy for the maximum, dy for averages.
ir::Kernel backward(PoolKind kind, bool channels_last) {
  ir::Kernel k{.name = "windows"};
  k.refuse = refuse_types;
  k.prepare = [=](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const PoolShape shape = shape_of(n, n.out_dims(0), kind, channels_last);
    const DType dtype = n.in[0].dtype;
    const bool reads_x = kind == PoolKind::max;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
                             cuda::pool_grad({args.stream, dtype}, shape,
                                             {.x = args.in[0],
                                              .dy = args.in[reads_x ? 1 : 0],
                                              .dx = args.out[0],
                                              .workspace = args.workspace});
                           },
                           cuda::pool_grad_workspace_bytes(shape)};
  };
  return k;
}

cuda::ReducePlan plane_plan(const ir::NodeView& n, cuda::ReduceJoin join, bool channels_last) {
  const tensor::Dims x = n.in_dims(0);
  std::vector<bool> reduced(x.size(), true);
  reduced[0] = reduced[channels_last ? x.size() - 1 : 1] = false;
  cuda::ReducePlan plan = cuda::plan_reduce(x, reduced);
  plan.join = join;
  plan.finish = join == cuda::ReduceJoin::sum ? cuda::ReduceFinish::mean : cuda::ReduceFinish::plain;
  return plan;
}

ir::Kernel whole_planes(cuda::ReduceJoin join, bool channels_last) {
  ir::Kernel k{.name = "two_stages"};
  k.refuse = refuse_types;
  k.prepare = [=](const ir::KernelInit& init) {
    const cuda::ReducePlan plan = plane_plan(init.node, join, channels_last);
    const DType dtype = init.node.in[0].dtype;
    return ir::BoundKernel{
        [=](const ir::RunArgs& args) {
          cuda::reduce({args.stream, dtype}, plan, args.in[0], args.out[0], args.workspace);
        },
        cuda::reduce_workspace_bytes(plan, dtype)};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> pools_cuda_kernels() {
  using cuda::ReduceJoin;
  return {{"max_pool", {forward(PoolKind::max, false)}},
          {"average_pool", {forward(PoolKind::average, false)}},
          {"lp_pool", {forward(PoolKind::lp, false)}},
          {"max_pool_nhwc", {forward(PoolKind::max, true)}},
          {"average_pool_nhwc", {forward(PoolKind::average, true)}},
          {"max_pool_grad", {backward(PoolKind::max, false)}},
          {"average_pool_grad", {backward(PoolKind::average, false)}},
          {"max_pool_nhwc_grad", {backward(PoolKind::max, true)}},
          {"average_pool_nhwc_grad", {backward(PoolKind::average, true)}},
          {"global_average_pool", {whole_planes(ReduceJoin::sum, false)}},
          {"global_max_pool", {whole_planes(ReduceJoin::max, false)}},
          {"global_average_pool_nhwc", {whole_planes(ReduceJoin::sum, true)}}};
}

}  // namespace trireme::ops
