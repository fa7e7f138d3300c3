// Launcher of im2col with channels last: what each result of a convolution reads, as rows of a matrix.
#pragma once

#include "backend/cuda/conv/convolution.h"

namespace trireme::cuda {

/// Points of a result: batch and spatial axes, counted together.
struct PointRange {
  int64_t first = 0, count = 0;
};

/// rows [count, taps * channels] of f32: row i is what the result at the point `first` + i of `points` reads
/// of x, taps outside and channels inside, zeros where a tap lies in the padding. `shape` is a forward
/// convolution of one group; x may have its channels first or last. It writes 4 bytes an element and reads as
/// many, most from the second-level cache.
void image_rows(tensor::Stream& stream, const ConvolutionShape& shape, PointRange points, const void* x,
                void* rows);

}  // namespace trireme::cuda
