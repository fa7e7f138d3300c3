// Channels-last pooling on CPU: vectors over channels.
#include "backend/cpu/pool_nhwc.h"

#include "backend/cpu/cpu_stream.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

ir::Refusal refuse(const ir::NodeView& n) { return refuse_dtype(n, 0, {tensor::DType::f32}); }

cpu::PoolArgs args_of(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), y = n.out_dims(0);
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

ir::BoundKernel prepare_max(const ir::KernelInit& init) {
  return {.run = [pool = args_of(init.node)](const ir::RunArgs& args) {
    cpu::PoolArgs p = pool;
    p.x = in_ptr<float>(args, 0);
    p.y = out_ptr<float>(args, 0);
    cpu::max_pool_nhwc(p, cpu::pool_of(args.stream));
  }};
}

ir::BoundKernel prepare_average(const ir::KernelInit& init) {
  const cpu::PoolArgs pool = args_of(init.node);
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

}  // namespace

std::vector<ir::Kernel> max_pool_nhwc_cpu_kernels() {
  return {{.name = "channel_vectors", .refuse = refuse, .prepare = prepare_max}};
}
std::vector<ir::Kernel> average_pool_nhwc_cpu_kernels() {
  return {{.name = "channel_vectors", .refuse = refuse, .prepare = prepare_average}};
}
std::vector<ir::Kernel> max_pool_nhwc_grad_cpu_kernels() { return {}; }
std::vector<ir::Kernel> average_pool_nhwc_grad_cpu_kernels() { return {}; }
std::vector<ir::Kernel> global_average_pool_nhwc_cpu_kernels() {
  return {{.name = "channel_vectors", .refuse = refuse, .prepare = prepare_global}};
}

}  // namespace trireme::ops
