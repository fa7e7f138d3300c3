// Internal: implicit products that leave out the taps in the padding, for dilated kernels on small planes.
#pragma once

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

/// Pairs of output and tap of one image whose pixel lies inside it. Up to 11 taps a side.
int64_t conv_inside_taps(const ConvShape& shape);

/// True if at least a fifth of the multiply-adds of an image would be of padding, and inputs are deep enough
/// for products of single kernel rows. Looks at one image: the choice changes which zeros are multiplied.
bool conv_skips_padding(const ConvShape& shape);

/// Bytes of the sums of all outputs, and what the products take.
size_t conv2d_inside_workspace_bytes(const ConvShape& shape, int threads);

/// Outputs whose taps inside the image are the same form a region; each kernel row is a product with every
/// region that has some of it, on top of the sums so far. An output is the multiply-add chain of its taps
/// inside the image in (kh, kw, c) order: no tap outside it is multiplied, not even by an infinite weight.
void conv2d_inside(const ConvArgs& args, void* workspace, base::ThreadPool& pool);

}  // namespace trireme::cpu
