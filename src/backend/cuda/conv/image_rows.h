// Launcher of im2col with channels last: what each result of a convolution reads, as rows of a matrix.
#pragma once

#include "backend/cuda/conv/convolution.h"

namespace trireme::cuda {

/// rows [count, taps * channels] of f32: row i is what the result at the point `first` + i (batch and spatial
/// axes, counted together) reads of x, taps outside and channels inside, zeros where a tap lies in the
/// padding. `shape` is a forward convolution of one group; x may have its channels first or last. It writes
/// 4 bytes an element and reads as many, most from the second-level cache.
void image_rows(tensor::Stream& stream, const ConvolutionShape& shape, int64_t first, int64_t count,
                const void* x, void* rows);

}  // namespace trireme::cuda
