// Channels-last pooling on CPU with vectors of channels.

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv/pool_grad.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

ir::Refusal refuse_nhwc(const ir::NodeView& n) { return refuse_dtype(n, 0, {tensor::DType::f32}); }

/// Arguments of the forward pooling with extents `x` and `y`.
cpu::PoolArgs args_of(const ir::NodeView& n, const tensor::Dims& x, const tensor::Dims& y) {
  const Window window = make_window(n.attrs, n.attrs.get_ints("kernel_shape"), {x[1], x[2]});
  const WindowAxis &h = window[1], &w = window[2];
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  cpu::PoolArgs args;
  args.shape = {.n = x[0],
                .h = x[1],
                .w = x[2],
                .c = x[3],
                .oc = x[3],
                .kh = small(h.kernel),
                .kw = small(w.kernel),
                .stride_h = small(h.stride),
                .stride_w = small(w.stride),
                .dilation_h = small(h.dilation),
                .dilation_w = small(w.dilation),
                .pad_top = small(h.pad_begin),
                .pad_left = small(w.pad_begin),
                .pad_bottom = small(h.pad_end),
                .pad_right = small(w.pad_end)};
  args.out_h = y[1];
  args.out_w = y[2];
  args.count_padding = n.attrs.get_int("count_include_pad", 0) != 0;
  return args;
}

ir::BoundKernel prepare_max_nhwc(const ir::KernelInit& init) {
  return {.run = [pool = args_of(init.node, init.node.in_dims(0), init.node.out_dims(0))](
                     const ir::RunArgs& args) {
    cpu::PoolArgs p = pool;
    p.x = in_ptr<float>(args, 0);
    p.y = out_ptr<float>(args, 0);
    cpu::max_pool_nhwc(p, cpu::pool_of(args.stream));
  }};
}

ir::BoundKernel prepare_average(const ir::KernelInit& init) {
  const cpu::PoolArgs pool = args_of(init.node, init.node.in_dims(0), init.node.out_dims(0));
  return {.run =
              [pool](const ir::RunArgs& args) {
                cpu::PoolArgs p = pool;
                p.x = in_ptr<float>(args, 0);
                p.y = out_ptr<float>(args, 0);
                cpu::average_pool_nhwc(p, args.workspace, cpu::pool_of(args.stream));
              },
          .workspace_bytes = static_cast<int64_t>(cpu::average_pool_workspace_bytes(pool))};
}

ir::BoundKernel prepare_global(const ir::KernelInit& init) {
  const tensor::Dims x = init.node.in_dims(0);
  return {.run = [x](const ir::RunArgs& args) {
    cpu::global_average_pool_nhwc({.n = x[0],
                                   .lines = x[1],
                                   .line = x[2],
                                   .c = x[3],
                                   .x = in_ptr<float>(args, 0),
                                   .y = out_ptr<float>(args, 0)},
                                  cpu::pool_of(args.stream));
  }};
}

cpu::PoolGradArgs grad_args_of(const cpu::PoolArgs& forward) {
  return {.shape = forward.shape,
          .out_h = forward.out_h,
          .out_w = forward.out_w,
          .count_padding = forward.count_padding};
}

/// The operands are x and dy.
ir::BoundKernel prepare_max_nhwc_grad(const ir::KernelInit& init) {
  cpu::PoolGradArgs pool = grad_args_of(args_of(init.node, init.node.in_dims(0), init.node.in_dims(1)));
  pool.rectified = init.node.attrs.get_int("rectified", 0) != 0;
  return {.run = [pool](const ir::RunArgs& args) {
    cpu::PoolGradArgs p = pool;
    p.x = in_ptr<float>(args, 0);
    p.dy = in_ptr<float>(args, 1);
    p.dx = out_ptr<float>(args, 0);
    cpu::max_pool_nhwc_grad(p, cpu::pool_of(args.stream));
  }};
}

/// The operand is dy.
ir::BoundKernel prepare_average_nhwc_grad(const ir::KernelInit& init) {
  const cpu::PoolGradArgs pool =
      grad_args_of(args_of(init.node, init.node.out_dims(0), init.node.in_dims(0)));
  return {.run = [pool](const ir::RunArgs& args) {
    cpu::PoolGradArgs p = pool;
    p.dy = in_ptr<float>(args, 0);
    p.dx = out_ptr<float>(args, 0);
    cpu::average_pool_nhwc_grad(p, cpu::pool_of(args.stream));
  }};
}

}  // namespace

std::vector<ir::Kernel> max_pool_nhwc_cpu_kernels() {
  return faster({{.name = "channel_vectors", .refuse = refuse_nhwc, .prepare = prepare_max_nhwc}}, {});
}
std::vector<ir::Kernel> average_pool_nhwc_cpu_kernels() {
  return faster({{.name = "channel_vectors", .refuse = refuse_nhwc, .prepare = prepare_average}}, {});
}
std::vector<ir::Kernel> max_pool_nhwc_grad_cpu_kernels() {
  return faster({{.name = "channel_vectors", .refuse = refuse_nhwc, .prepare = prepare_max_nhwc_grad}}, {});
}
std::vector<ir::Kernel> average_pool_nhwc_grad_cpu_kernels() {
  return faster({{.name = "channel_vectors", .refuse = refuse_nhwc, .prepare = prepare_average_nhwc_grad}},
                {});
}
std::vector<ir::Kernel> global_average_pool_nhwc_cpu_kernels() {
  return faster({{.name = "channel_vectors", .refuse = refuse_nhwc, .prepare = prepare_global}}, {});
}

}  // namespace trireme::ops
