// The forms in which gradients of channels-last convolutions run on CPU, by shape: for the kernels of two
// spatial axes, and for slices of three.
#pragma once

#include <vector>

#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/conv/conv_grad_x.h"
#include "ir/kernel.h"

namespace trireme::ops {

/// Towards x. `refuse` names what of the shape does not fit.
struct ConvGradXForm {
  const char* name;
  ir::Refusal (*refuse)(const cpu::ConvShape& shape);
  size_t (*bytes)(const cpu::ConvShape& shape, int threads);
  void (*run)(const cpu::ConvGradXArgs& args, void* workspace, base::ThreadPool& pool);
};

/// In the order in which they are asked: the first that fits is the fastest.
const std::vector<ConvGradXForm>& conv_grad_x_forms();

/// Towards the weights. `sums`: the gradient of the bias, the sum of dy, is wanted too.
struct ConvGradWForm {
  const char* name;
  ir::Refusal (*refuse)(const cpu::ConvShape& shape, cpu::ImageLayout layout, bool sums);
  size_t (*bytes)(const cpu::ConvShape& shape, cpu::ImageLayout layout, int threads);
  void (*run)(const cpu::ConvGradWArgs& args, void* workspace, base::ThreadPool& pool);
};

const std::vector<ConvGradWForm>& conv_grad_w_forms();

/// conv_nhwc_grad_x and conv_nhwc_grad_w of three spatial axes: tap by tap in depth, each tap a gradient of
/// whole slices. Workspace: copies of the slices of one tap.
ir::Kernel conv_depth_grad_x_kernel();
ir::Kernel conv_depth_grad_w_kernel();

}  // namespace trireme::ops
