// conv_nhwc_grad_x and conv_nhwc_grad_w on CPU: Winograd tiles, products over dy, products summed over
// pixels.
#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/conv/conv_grad_x.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv/depthwise_grad.h"
#include "backend/cpu/conv/winograd_grad_w.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// The convolution whose gradient towards x the node is; operands dy and w.
cpu::ConvShape shape_x(const ir::NodeView& n) {
  return conv_shape(n.attrs, channels_last_extents(n.out_dims(0)), n.in_dims(1));
}

/// The same towards the weights; operands x and dy.
cpu::ConvShape shape_w(const ir::NodeView& n) { return conv_shape(n.attrs, conv_extents(n), n.out_dims(0)); }

ir::Refusal refuse_x(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  if (const auto why = refuse_dtype(n, 1, {tensor::DType::f32})) return why;
  if (const auto why = refuse_empty(n)) return why;
  if (const auto why = refuse_conv_rank(n)) return why;
  const Dims dy = n.in_dims(0);
  const cpu::ConvShape s = shape_x(n);
  if (dy.back() != s.oc || s.oc % s.groups != 0)
    return base::concat("gradients of ", dy.back(), " channels, weights of ", s.oc, " in ", s.groups,
                        " groups");
  return refuse_conv_shape(s, dy);
}

ir::Refusal refuse_w(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  if (const auto why = refuse_dtype(n, 1, {tensor::DType::f32})) return why;
  if (const auto why = refuse_empty(n)) return why;
  if (const auto why = refuse_conv_rank(n)) return why;
  const Dims dy = n.in_dims(1);
  const cpu::ConvShape s = shape_w(n);
  if (dy[0] != s.n || s.oc % s.groups != 0)
    return base::concat("gradients of ", dy[0], " of ", s.n, " images, ", s.oc, " channels in ", s.groups,
                        " groups");
  return refuse_conv_shape(s, dy);
}

ir::Refusal refuse_x_winograd(const ir::NodeView& n) {
  if (const auto why = refuse_x(n)) return why;
  const cpu::ConvShape s = shape_x(n);
  if (const auto why = refuse_not_three_by_three(s)) return why;
  if (!cpu::conv_grad_x_winograd_fits(s)) return "padding is above 2";
  if (s.h < 4 || s.w < 4) return base::concat("input of ", s.h, " x ", s.w);
  return std::nullopt;
}

ir::Refusal refuse_x_direct(const ir::NodeView& n) {
  if (const auto why = refuse_x(n)) return why;
  const cpu::ConvShape s = shape_x(n);
  if (s.stride_h != 1 || s.stride_w != 1) return base::concat("stride is ", s.stride_h, " x ", s.stride_w);
  if (!cpu::conv_grad_x_direct_fits(s)) return "padding exceeds the kernel, or more than 256 taps";
  return std::nullopt;
}

ir::Refusal refuse_x_phases(const ir::NodeView& n) {
  if (const auto why = refuse_x(n)) return why;
  if (!cpu::conv_grad_x_phases_fits(shape_x(n)))
    return "dilated, padding exceeds the kernel, or above 256 taps";
  return std::nullopt;
}

ir::Refusal refuse_not_depthwise(const cpu::ConvShape& s) {
  if (cpu::depthwise_grad_fits(s)) return std::nullopt;
  return base::concat(s.groups, " groups of ", s.c, " channels: not depthwise");
}

ir::Refusal refuse_x_depthwise(const ir::NodeView& n) {
  if (const auto why = refuse_x(n)) return why;
  return refuse_not_depthwise(shape_x(n));
}

ir::Refusal refuse_sums(const ir::NodeView& n) {
  if (n.out.size() > 1) return "does not sum dy";
  return std::nullopt;
}

ir::Refusal refuse_w_depthwise(const ir::NodeView& n) {
  if (const auto why = refuse_w(n)) return why;
  if (const auto why = refuse_sums(n)) return why;
  if (conv_reads_nchw(n)) return "reads nchw";
  return refuse_not_depthwise(shape_w(n));
}

using GradX = void (*)(const cpu::ConvGradXArgs&, void*, base::ThreadPool&);
using Bytes = size_t (*)(const cpu::ConvShape&, int);

std::function<ir::BoundKernel(const ir::KernelInit&)> prepare_x(GradX run, Bytes bytes) {
  return [run, bytes](const ir::KernelInit& init) {
    const cpu::ConvShape shape = shape_x(init.node);
    ir::BoundKernel bound{.workspace_bytes = static_cast<int64_t>(bytes(shape, init.threads))};
    bound.run = [=](const ir::RunArgs& args) {
      run({shape, in_ptr<float>(args, 0), in_ptr<float>(args, 1), out_ptr<float>(args, 0)}, args.workspace,
          cpu::pool_of(args.stream));
    };
    return bound;
  };
}

cpu::ImageLayout layout_of(const ir::NodeView& n) {
  return conv_reads_nchw(n) ? cpu::ImageLayout::nchw : cpu::ImageLayout::nhwc;
}

ir::Refusal refuse_w_lines(const ir::NodeView& n) {
  if (const auto why = refuse_w(n)) return why;
  if (!cpu::conv_grad_w_lines_fits(shape_w(n), layout_of(n)))
    return "16 input channels or more, groups, dilation";
  if (n.out.size() > 1 && !cpu::conv_grad_w_lines_sums(shape_w(n))) return "taps fill whole vectors";
  return std::nullopt;
}

ir::Refusal refuse_w_columns(const ir::NodeView& n) {
  if (const auto why = refuse_w(n)) return why;
  if (const auto why = refuse_sums(n)) return why;
  if (!cpu::conv_grad_w_columns_fits(shape_w(n), layout_of(n))) return "reads nchw";
  return std::nullopt;
}

ir::Refusal refuse_w_winograd(const ir::NodeView& n) {
  if (const auto why = refuse_w(n)) return why;
  if (const auto why = refuse_sums(n)) return why;
  const cpu::ConvShape s = shape_w(n);
  if (const auto why = refuse_not_three_by_three(s)) return why;
  if (layout_of(n) == cpu::ImageLayout::nchw) return "reads nchw";
  if (!cpu::winograd_fits(s)) return "padding is above 2";
  if (s.out_h() < 4 || s.out_w() < 4) return base::concat("output of ", s.out_h(), " x ", s.out_w());
  return std::nullopt;
}

cpu::ConvGradWArgs args_w(const cpu::ConvShape& shape, cpu::ImageLayout layout, const ir::RunArgs& args) {
  return {shape, in_ptr<float>(args, 0), layout, in_ptr<float>(args, 1), out_ptr<float>(args, 0)};
}

ir::BoundKernel prepare_w_lines(const ir::KernelInit& init) {
  const cpu::ConvShape shape = shape_w(init.node);
  const cpu::ImageLayout layout = layout_of(init.node);
  ir::BoundKernel bound{.workspace_bytes =
                            static_cast<int64_t>(cpu::conv_grad_w_lines_bytes(shape, layout, init.threads))};
  const bool sums = init.node.out.size() > 1;
  bound.run = [=](const ir::RunArgs& args) {
    cpu::ConvGradWArgs a = args_w(shape, layout, args);
    if (sums) a.db = out_ptr<float>(args, 1);
    cpu::conv_grad_w_lines(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

using GradW = void (*)(const cpu::ConvGradWArgs&, void*, base::ThreadPool&);

std::function<ir::BoundKernel(const ir::KernelInit&)> prepare_w(GradW run, Bytes bytes) {
  return [run, bytes](const ir::KernelInit& init) {
    const cpu::ConvShape shape = shape_w(init.node);
    ir::BoundKernel bound{.workspace_bytes = static_cast<int64_t>(bytes(shape, init.threads))};
    bound.run = [=](const ir::RunArgs& args) {
      run(args_w(shape, cpu::ImageLayout::nhwc, args), args.workspace, cpu::pool_of(args.stream));
    };
    return bound;
  };
}

}  // namespace

std::vector<ir::Kernel> conv_nhwc_grad_x_cpu_kernels() {
  return faster({{.name = "depthwise",
                  .refuse = refuse_x_depthwise,
                  .prepare = prepare_x(cpu::depthwise_grad_x, cpu::depthwise_grad_x_bytes)},
                 {.name = "winograd",
                  .refuse = refuse_x_winograd,
                  .prepare = prepare_x(cpu::conv_grad_x_winograd, cpu::conv_grad_x_winograd_bytes)},
                 {.name = "implicit_gemm",
                  .refuse = refuse_x_direct,
                  .prepare = prepare_x(cpu::conv_grad_x_direct, cpu::conv_grad_x_direct_bytes)},
                 {.name = "phases",
                  .refuse = refuse_x_phases,
                  .prepare = prepare_x(cpu::conv_grad_x_phases, cpu::conv_grad_x_phases_bytes)}},
                {});
}

std::vector<ir::Kernel> conv_nhwc_grad_w_cpu_kernels() {
  return faster({{.name = "depthwise",
                  .refuse = refuse_w_depthwise,
                  .prepare = prepare_w(cpu::depthwise_grad_w, cpu::depthwise_grad_w_bytes)},
                 {.name = "lines", .refuse = refuse_w_lines, .prepare = prepare_w_lines},
                 {.name = "winograd",
                  .refuse = refuse_w_winograd,
                  .prepare = prepare_w(cpu::winograd_grad_w, cpu::winograd_grad_w_bytes)},
                 {.name = "columns",
                  .refuse = refuse_w_columns,
                  .prepare = prepare_w(cpu::conv_grad_w_columns, cpu::conv_grad_w_columns_bytes)}},
                {});
}

}  // namespace trireme::ops
