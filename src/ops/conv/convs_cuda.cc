// Kernels of convolutions and their gradients on NVIDIA GPUs.
#include "backend/cuda/conv/convolution.h"
#include "ops/conv/conv_grad.h"
#include "ops/conv/transpose_window.h"
#include "ops/cuda_kernels.h"
#include "ops/dense/gemm_cuda.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using cuda::ConvolutionKind;
using cuda::ConvolutionShape;
using tensor::Dims;
using tensor::DType;

void set_window(ConvolutionShape& s, const Window& window) {
  for (size_t i = 0; i < 3; ++i) {
    s.in[i] = window[i].in;
    s.kernel[i] = window[i].kernel;
    s.out[i] = window[i].out;
    s.stride[i] = window[i].stride;
    s.dilation[i] = window[i].dilation;
    s.pad[i] = window[i].pad_begin;
  }
}

/// Indices of the operands x, w, y, bias and residual; -1 if absent.
struct ConvolutionOperands {
  int x = -1, w = -1, y = -1, bias = -1, residual = -1;
};

ir::BoundKernel bind(const ir::KernelInit& init, const ConvolutionShape& shape,
                     const ConvolutionOperands& at) {
  const auto plan = cuda::prepare_convolution({init.device, &init.packs}, shape);
  auto run = [plan, at](const ir::RunArgs& args) {
    auto operand = [&](int i) { return i < 0 ? nullptr : args.in[i]; };
    plan->run(args.stream,
              {.x = operand(at.x),
               .w = operand(at.w),
               .y = operand(at.y),
               .result = args.out[0],
               .bias = operand(at.bias),
               .residual = operand(at.residual)},
              args.workspace);
  };
  return {run, plan->workspace_bytes()};
}

int at_or_none(const ir::NodeView& node, int i) { return node.present(static_cast<size_t>(i)) ? i : -1; }

Dims spatial(const Dims& dims, bool channels_last) {
  return channels_last ? Dims(dims.begin() + 1, dims.end() - 1) : Dims(dims.begin() + 2, dims.end());
}

/// x [n, c, ...] or channels last, w [oc, c / group, kernel ...].
ConvolutionShape forward_shape(const ir::NodeView& node, const Dims& x, const Dims& w, bool channels_last) {
  ConvolutionShape s{.type = node.in[0].dtype,
                     .batch = x[0],
                     .channels = channels_last ? x.back() : x[1],
                     .filters = w[0],
                     .groups = node.attrs.get_int("group", 1),
                     .x_channels_last = channels_last};
  set_window(s, make_window(node.attrs, Dims(w.begin() + 2, w.end()), spatial(x, channels_last)));
  return s;
}

ir::BoundKernel prepare_conv(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  ConvolutionShape s = forward_shape(node, node.in_dims(0), node.in_dims(1), false);
  s.bias = node.present(2);
  return bind(init, s, {.x = 0, .w = 1, .bias = at_or_none(node, 2)});
}

ir::BoundKernel prepare_conv_nhwc(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const ActivationSpec act = activation_of(node.attrs);
  ConvolutionShape s = forward_shape(node, node.in_dims(0), node.in_dims(1), !conv_reads_nchw(node.attrs));
  s.y_channels_last = true;
  s.bias = node.present(2);
  s.residual = node.present(3);
  s.act = activation_form(act);
  s.act_before_residual = act.before_residual;
  return bind(init, s, {.x = 0, .w = 1, .bias = at_or_none(node, 2), .residual = at_or_none(node, 3)});
}

ir::BoundKernel prepare_nhwc_grad_x(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  ConvolutionShape s = forward_shape(node, node.out_dims(0), node.in_dims(1), true);
  s.kind = ConvolutionKind::data;
  s.y_channels_last = true;
  return bind(init, s, {.w = 1, .y = 0});
}

ir::BoundKernel prepare_nhwc_grad_w(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  ConvolutionShape s = forward_shape(node, node.in_dims(0), node.out_dims(0), !conv_reads_nchw(node.attrs));
  s.kind = ConvolutionKind::weights;
  s.y_channels_last = true;
  return bind(init, s, {.x = 0, .y = 1});
}

ir::BoundKernel prepare_grad_w(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  ConvolutionShape s = forward_shape(node, node.in_dims(0), node.out_dims(0), false);
  s.kind = ConvolutionKind::weights;
  return bind(init, s, {.x = 0, .y = 1});
}

/// A transposed convolution is the gradient of a convolution towards its data; the operand is that one's y.
ir::BoundKernel prepare_transpose(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const Dims y = node.in_dims(0), w = node.in_dims(1), x = node.out_dims(0);
  ConvolutionShape s{.kind = ConvolutionKind::data,
                     .type = node.in[0].dtype,
                     .batch = x[0],
                     .channels = x[1],
                     .filters = y[1],
                     .groups = node.attrs.get_int("group", 1)};
  Window window = transpose_window(node.attrs, Dims(w.begin() + 2, w.end()), spatial(y, false));
  // In this convolution the operand is the result, so in and out are exchanged.
  for (WindowAxis& axis : window.axes) std::swap(axis.in, axis.out);
  set_window(s, window);
  s.bias = node.present(2);
  return bind(init, s, {.w = 1, .y = 0, .bias = at_or_none(node, 2)});
}

ir::Refusal refuse_convolution(const ir::NodeView& node) {
  if (node.in[0].shape.rank() > 5) return "more than three spatial axes";
  if (node.out.size() > 1) return "does not sum dy";
  return refuse_products(node);
}

ir::Kernel kernel(PrepareFn prepare) {
  return {.name = "convolution", .refuse = refuse_convolution, .prepare = std::move(prepare)};
}

}  // namespace

std::vector<CudaKernels> convs_cuda_kernels() {
  return {{"conv", {kernel(prepare_conv)}},
          {"conv_nhwc", {kernel(prepare_conv_nhwc)}},
          {"conv_nhwc_grad_x", {kernel(prepare_nhwc_grad_x)}},
          {"conv_nhwc_grad_w", {kernel(prepare_nhwc_grad_w)}},
          {"conv_grad_w", {kernel(prepare_grad_w)}},
          {"conv_transpose", {kernel(prepare_transpose)}}};
}

}  // namespace trireme::ops
