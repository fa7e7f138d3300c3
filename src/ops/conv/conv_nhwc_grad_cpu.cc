// conv_nhwc_grad_x and conv_nhwc_grad_w on CPU: Winograd tiles, grouped vectors, products over dy, products
// summed over pixels.
#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/conv/conv_grad_x.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv/depthwise_grad.h"
#include "backend/cpu/conv/winograd_grad_w.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "backend/cpu/conv_forms/grouped_grad.h"
#include "ops/conv/conv_grad_forms_cpu.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using cpu::ConvShape;
using cpu::ImageLayout;
using tensor::Dims;

/// The convolution that a gradient belongs to, over two axes, and the extents of its result.
std::optional<FoldedConv> conv_of(const ir::NodeView& n, const Dims& x, const Dims& w, const Dims& y) {
  if (x.size() == 5 && conv_reads_nchw(n.attrs)) return std::nullopt;
  if (x.size() == 5) return folded_conv(n.attrs, x, w, y);
  Dims last = x;
  if (conv_reads_nchw(n.attrs)) std::rotate(last.begin() + 1, last.begin() + 2, last.end());
  return FoldedConv{conv_shape(n.attrs, channels_last_extents(last), w), y};
}

/// Of the gradient towards x; the operands are dy and w.
std::optional<FoldedConv> conv_x(const ir::NodeView& n) {
  return conv_of(n, n.out_dims(0), n.in_dims(1), n.in_dims(0));
}

/// Of the gradient towards the weights; the operands are x and dy.
std::optional<FoldedConv> conv_w(const ir::NodeView& n) {
  return conv_of(n, n.in_dims(0), n.out_dims(0), n.in_dims(1));
}

ImageLayout layout_of(const ir::NodeView& n) {
  return conv_reads_nchw(n.attrs) ? ImageLayout::nchw : ImageLayout::nhwc;
}

ir::Refusal refuse_x(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  if (const auto why = refuse_dtype(n, 1, {tensor::DType::f32})) return why;
  if (const auto why = refuse_empty(n)) return why;
  const auto conv = conv_x(n);
  if (!conv) return "three spatial axes";
  const Dims& dy = conv->y;
  const ConvShape& s = conv->shape;
  if (dy.back() != s.oc || s.oc % s.groups != 0)
    return base::concat("gradients of ", dy.back(), " channels, weights of ", s.oc, " in ", s.groups,
                        " groups");
  return refuse_conv_shape(s, dy);
}

ir::Refusal refuse_w(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  if (const auto why = refuse_dtype(n, 1, {tensor::DType::f32})) return why;
  if (const auto why = refuse_empty(n)) return why;
  const auto conv = conv_w(n);
  if (!conv) return "three spatial axes";
  const Dims& dy = conv->y;
  const ConvShape& s = conv->shape;
  if (dy[0] != s.n || s.oc % s.groups != 0)
    return base::concat("gradients of ", dy[0], " of ", s.n, " images, ", s.oc, " channels in ", s.groups,
                        " groups");
  return refuse_conv_shape(s, dy);
}

ir::Refusal refuse_not_depthwise(const ConvShape& s) {
  if (cpu::depthwise_grad_fits(s)) return std::nullopt;
  return base::concat(s.groups, " groups of ", s.c, " channels, or a large kernel: not depthwise");
}

constexpr const char* kNotManyGroups = "groups leave lanes empty or fill products";

ir::Refusal refuse_x_grouped(const ConvShape& s) {
  if (!cpu::grouped_grad_x_pays(s)) return kNotManyGroups;
  return std::nullopt;
}

ir::Refusal refuse_x_winograd(const ConvShape& s) {
  if (const auto why = refuse_not_three_by_three(s)) return why;
  if (!cpu::conv_grad_x_winograd_fits(s)) return "padding is above 2";
  if (s.h < 4 || s.w < 4) return base::concat("input of ", s.h, " x ", s.w);
  return std::nullopt;
}

ir::Refusal refuse_x_direct(const ConvShape& s) {
  if (s.stride_h != 1 || s.stride_w != 1) return base::concat("stride is ", s.stride_h, " x ", s.stride_w);
  if (!cpu::conv_grad_x_direct_fits(s)) return "padding exceeds the kernel, or more than 256 taps";
  return std::nullopt;
}

ir::Refusal refuse_x_phases(const ConvShape& s) {
  if (!cpu::conv_grad_x_phases_fits(s))
    return "dilated, padding exceeds the kernel, above 256 taps, or of very many phases";
  return std::nullopt;
}

ir::Refusal refuse_sums_or_planes(ImageLayout layout, bool sums) {
  if (sums) return "does not sum dy";
  if (layout == ImageLayout::nchw) return "reads nchw";
  return std::nullopt;
}

ir::Refusal refuse_w_depthwise(const ConvShape& s, ImageLayout layout, bool sums) {
  if (const auto why = refuse_sums_or_planes(layout, sums)) return why;
  return refuse_not_depthwise(s);
}

ir::Refusal refuse_w_grouped(const ConvShape& s, ImageLayout layout, bool sums) {
  if (const auto why = refuse_sums_or_planes(layout, sums)) return why;
  if (!cpu::grouped_grad_w_pays(s)) return kNotManyGroups;
  return std::nullopt;
}

ir::Refusal refuse_w_lines(const ConvShape& s, ImageLayout layout, bool sums) {
  if (!cpu::conv_grad_w_lines_fits(s, layout)) return "16 input channels or more, groups, dilation";
  if (sums && !cpu::conv_grad_w_lines_sums(s)) return "taps fill whole vectors";
  return std::nullopt;
}

ir::Refusal refuse_w_winograd(const ConvShape& s, ImageLayout layout, bool sums) {
  if (const auto why = refuse_sums_or_planes(layout, sums)) return why;
  if (const auto why = refuse_not_three_by_three(s)) return why;
  if (!cpu::winograd_fits(s)) return "padding is above 2";
  if (s.out_h() < 4 || s.out_w() < 4) return base::concat("output of ", s.out_h(), " x ", s.out_w());
  return std::nullopt;
}

ir::Refusal refuse_w_columns(const ConvShape& s, ImageLayout layout, bool sums) {
  if (const auto why = refuse_sums_or_planes(layout, sums)) return why;
  if (!cpu::conv_grad_w_columns_fits(s, layout)) return "no pixels";
  return std::nullopt;
}

/// The workspace of a form that reads only channels last.
template <size_t (*kBytes)(const ConvShape&, int)>
size_t of_channels_last(const ConvShape& s, ImageLayout, int threads) {
  return kBytes(s, threads);
}

ir::Kernel kernel_of(const ConvGradXForm& form) {
  ir::Kernel kernel{.name = form.name};
  kernel.refuse = [form](const ir::NodeView& n) -> ir::Refusal {
    if (const auto why = refuse_x(n)) return why;
    return form.refuse(conv_x(n)->shape);
  };
  kernel.prepare = [form](const ir::KernelInit& init) {
    const ConvShape shape = conv_x(init.node)->shape;
    ir::BoundKernel bound{.workspace_bytes = static_cast<int64_t>(form.bytes(shape, init.threads))};
    bound.run = [=](const ir::RunArgs& args) {
      form.run({shape, in_ptr<float>(args, 0), in_ptr<float>(args, 1), out_ptr<float>(args, 0)},
               args.workspace, cpu::pool_of(args.stream));
    };
    return bound;
  };
  return kernel;
}

ir::Kernel kernel_of(const ConvGradWForm& form) {
  ir::Kernel kernel{.name = form.name};
  kernel.refuse = [form](const ir::NodeView& n) -> ir::Refusal {
    if (const auto why = refuse_w(n)) return why;
    return form.refuse(conv_w(n)->shape, layout_of(n), n.out.size() > 1);
  };
  kernel.prepare = [form](const ir::KernelInit& init) {
    const ConvShape shape = conv_w(init.node)->shape;
    const ImageLayout layout = layout_of(init.node);
    ir::BoundKernel bound{.workspace_bytes = static_cast<int64_t>(form.bytes(shape, layout, init.threads))};
    bound.run = [=, sums = init.node.out.size() > 1](const ir::RunArgs& args) {
      cpu::ConvGradWArgs a{shape, in_ptr<float>(args, 0), layout, in_ptr<float>(args, 1),
                           out_ptr<float>(args, 0)};
      if (sums) a.db = out_ptr<float>(args, 1);
      form.run(a, args.workspace, cpu::pool_of(args.stream));
    };
    return bound;
  };
  return kernel;
}

template <class Form>
std::vector<ir::Kernel> kernels_of(const std::vector<Form>& forms, ir::Kernel depth) {
  std::vector<ir::Kernel> kernels;
  for (const Form& form : forms) kernels.push_back(kernel_of(form));
  kernels.push_back(std::move(depth));
  return faster(std::move(kernels), {});
}

}  // namespace

const std::vector<ConvGradXForm>& conv_grad_x_forms() {
  static const std::vector<ConvGradXForm> forms{
      {"depthwise", refuse_not_depthwise, cpu::depthwise_grad_x_bytes, cpu::depthwise_grad_x},
      {"grouped", refuse_x_grouped, cpu::grouped_grad_x_bytes, cpu::grouped_grad_x},
      {"winograd", refuse_x_winograd, cpu::conv_grad_x_winograd_bytes, cpu::conv_grad_x_winograd},
      {"implicit_gemm", refuse_x_direct, cpu::conv_grad_x_direct_bytes, cpu::conv_grad_x_direct},
      {"phases", refuse_x_phases, cpu::conv_grad_x_phases_bytes, cpu::conv_grad_x_phases}};
  return forms;
}

const std::vector<ConvGradWForm>& conv_grad_w_forms() {
  static const std::vector<ConvGradWForm> forms{
      {"depthwise", refuse_w_depthwise, of_channels_last<cpu::depthwise_grad_w_bytes>, cpu::depthwise_grad_w},
      {"grouped", refuse_w_grouped, of_channels_last<cpu::grouped_grad_w_bytes>, cpu::grouped_grad_w},
      {"lines", refuse_w_lines, cpu::conv_grad_w_lines_bytes, cpu::conv_grad_w_lines},
      {"winograd", refuse_w_winograd, of_channels_last<cpu::winograd_grad_w_bytes>, cpu::winograd_grad_w},
      {"columns", refuse_w_columns, of_channels_last<cpu::conv_grad_w_columns_bytes>,
       cpu::conv_grad_w_columns}};
  return forms;
}

std::vector<ir::Kernel> conv_nhwc_grad_x_cpu_kernels() {
  return kernels_of(conv_grad_x_forms(), conv_depth_grad_x_kernel());
}

std::vector<ir::Kernel> conv_nhwc_grad_w_cpu_kernels() {
  return kernels_of(conv_grad_w_forms(), conv_depth_grad_w_kernel());
}

}  // namespace trireme::ops
