// What schemas and kernels of convolutions with a maximum behind them share.
#pragma once

#include <vector>

#include "ir/kernel.h"
#include "ops/conv/window.h"

namespace trireme::ops {

/// The convolution inside a node of conv_pool_nhwc or of its gradients.
struct PooledConv {
  tensor::Dims x, w;  // [n, h, w, c], [oc, c, kh, kw]
  Window window;
  int64_t out_h() const { return window[1].out; }
  int64_t out_w() const { return window[2].out; }
};
PooledConv pooled_conv(const ir::NodeView& node);
PooledConv pooled_conv_of_grad(const ir::NodeView& node);

std::vector<ir::Kernel> conv_pool_nhwc_cpu_kernels();
std::vector<ir::Kernel> conv_pool_nhwc_grad_cpu_kernels();

}  // namespace trireme::ops
