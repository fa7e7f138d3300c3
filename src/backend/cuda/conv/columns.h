// Launchers of images as columns of blocks, and back.
#pragma once

#include <vector>

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

inline constexpr size_t kColumnRank = 4;  ///< spatial axes

/// Columns [planes, block, positions] of images [planes, image]: element b of the block at position p is the
/// image's at p stride + b dilation - pad, along each axis.
struct ColumnShape {
  struct Axis {
    int64_t image = 1, block = 1, positions = 1, stride = 1, dilation = 1, pad = 0;
  };
  int64_t planes = 0;
  std::vector<Axis> axes;
};
/// Elements of 1, 2, 4 or 8 bytes; zeros outside the image.
void columns_of_image(tensor::Stream& stream, const ColumnShape& shape, int64_t unit_bytes, const void* image,
                      void* columns);
/// Sums in the order of the block's elements; f32, f16, bf16 or f64.
void image_of_columns(On on, const ColumnShape& shape, const void* columns, void* image);

}  // namespace trireme::cuda
