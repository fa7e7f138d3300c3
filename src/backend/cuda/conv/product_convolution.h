// Convolutions as products of matrices.
#pragma once

#include "backend/cuda/conv/convolution.h"

namespace trireme::cuda {

/// Whether make_product_convolution() takes it: forward, f32 that stays f32, one group, results with their
/// channels last. For these cuDNN 9 has only engines that it compiles at run time, about a second each, which
/// reach 1 TFLOP/s on an H200 (docs/decisions/0100-few-rows-and-f32-on-a-gpu.md).
bool is_product_convolution(const ConvolutionShape& shape);

/// y = finish(rows w'): what the points read is copied to rows of a matrix, at most 64 MiB at a time, and one
/// product with the finish in it follows; 1 x 1 kernels without stride and padding read x itself.
std::unique_ptr<ConvolutionPlan> make_product_convolution(const GemmPlace& place,
                                                          const ConvolutionShape& shape);

}  // namespace trireme::cuda
