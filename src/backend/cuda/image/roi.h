// Launchers of region pooling: bilinear samples of regions and their way back, maxima over whole pixels.
#pragma once

#include "backend/cuda/device/on.h"

namespace trireme::cuda {

/// x [batch, channels, height, width]; regions [regions, 4] with an image number each, or [regions, 5] with
/// the image first; y [regions, channels, out_h, out_w].
struct RoiShape {
  int64_t batch = 0, channels = 0, height = 0, width = 0, regions = 0, out_h = 1, out_w = 1;
  double scale = 1;
  int64_t sampling = 0;  ///< samples of a cell along an axis; 0: as many as it has pixels
  bool half_pixel = true, maximum = false;
};

/// f32, f16 or bf16, regions too.
struct RoiArgs {
  const void *x = nullptr, *regions = nullptr;
  const int64_t* images = nullptr;
  const void* dy = nullptr;  ///< of the way back, which does not read x
  void* to = nullptr;
};
void roi_align(On on, const RoiShape& shape, const RoiArgs& args);
/// Of averages: every element of dx sums over the regions in their order.
void roi_align_grad(On on, const RoiShape& shape, const RoiArgs& args);
void max_roi_pool(On on, const RoiShape& shape, const RoiArgs& args);

}  // namespace trireme::cuda
