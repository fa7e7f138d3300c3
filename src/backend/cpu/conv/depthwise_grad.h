// Gradients of depthwise channels-last convolutions.
#pragma once

#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/conv/conv_grad_x.h"

namespace trireme::cpu {

/// True for one group per channel and one output per channel, and kernels of at most 32 along an axis.
bool depthwise_grad_fits(const ConvShape& shape);

size_t depthwise_grad_x_bytes(const ConvShape& shape, int threads);
/// dx: at stride 1 the forward kernel on weights turned around, else every input pixel gathers from the
/// windows that read it, in (kh, kw) order.
void depthwise_grad_x(const ConvGradXArgs& args, void* workspace, base::ThreadPool& pool);

size_t depthwise_grad_w_bytes(const ConvShape& shape, int threads);
/// dw: images fall into pieces by the extents only; each piece is one chain, the pieces are added in a tree.
void depthwise_grad_w(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
