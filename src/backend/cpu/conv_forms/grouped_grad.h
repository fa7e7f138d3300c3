// Gradients of channels-last convolutions of many small groups.
#pragma once

#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/conv/conv_grad_x.h"

namespace trireme::cpu {

/// True where the convolution over dy that goes back to x is faster by vectors of several groups than by a
/// product for each group: at stride 1 whole, else phase by phase. Without dilation at other strides.
bool grouped_grad_x_pays(const ConvShape& shape);
size_t grouped_grad_x_bytes(const ConvShape& shape, int threads);
/// dx: grouped_nhwc over dy on weights turned around; each element is one multiply-add chain.
void grouped_grad_x(const ConvGradXArgs& args, void* workspace, base::ThreadPool& pool);

/// True where vectors of several groups are faster than a product for each group.
bool grouped_grad_w_pays(const ConvShape& shape);
size_t grouped_grad_w_bytes(const ConvShape& shape, int threads);
/// dw: a vector of outputs holds whole groups, and input channel i of each of them comes to its lanes by one
/// permutation, which serves neighbouring taps; groups of more outputs than half a vector take vectors of
/// their own and broadcasts. Lines of dy fall into pieces by the extents only; each piece is one chain, the
/// pieces are added in a tree. x is nhwc.
void grouped_grad_w(const ConvGradWArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
