// Gradients of max and average pooling over channels-last f32 activations.
#pragma once

#include "backend/cpu/conv/pool_nhwc.h"

namespace trireme::cpu {

/// dx like x, from dy [n, out_h, out_w, c]. x is read by the maximum only.
struct PoolGradArgs {
  ConvShape shape;  // shape.c == shape.oc
  int64_t out_h = 0, out_w = 0;
  const float* x = nullptr;
  const float* dy = nullptr;
  float* dx = nullptr;
  bool count_padding = false;  // as the forward average divided
  bool rectified = false;      // of the maximum: windows without a positive value give nothing
};

/// dy of each window goes to its first maximum (the last NaN), found anew from x. Windows add in their order.
void max_pool_nhwc_grad(const PoolGradArgs& args, base::ThreadPool& pool);

/// Every window spreads dy / (elements the forward mean divided by) over its elements inside the image.
void average_pool_nhwc_grad(const PoolGradArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
