// Launchers of region pooling.
#include "backend/cuda/image/roi.h"

#include "backend/cuda/image/roi_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {

void roi_align(On on, const RoiShape& s, const RoiArgs& a) {
  const int64_t count = s.regions * s.channels * s.out_h * s.out_w;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "roi_align", flat_launch(on.stream, count, 128),
           RoiAlign<T>{s, static_cast<const T*>(a.x), static_cast<const T*>(a.regions), a.images,
                       static_cast<T*>(a.to), Divider(s.out_w, count), Divider(s.out_h, count),
                       Divider(s.channels, count), count});
  });
}

void roi_align_grad(On on, const RoiShape& s, const RoiArgs& a) {
  const int64_t count = s.batch * s.channels * s.height * s.width;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "roi_align_grad", flat_launch(on.stream, count, 128),
           RoiAlignGrad<T>{s, static_cast<const T*>(a.regions), a.images, static_cast<const T*>(a.dy),
                           static_cast<T*>(a.to), Divider(s.width, count), Divider(s.height, count),
                           Divider(s.channels, count), count});
  });
}

void max_roi_pool(On on, const RoiShape& s, const RoiArgs& a) {
  const int64_t count = s.regions * s.channels * s.out_h * s.out_w;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(
        on.stream, "max_roi_pool", flat_launch(on.stream, count, 128),
        MaxRoiPool<T>{s, static_cast<const T*>(a.x), static_cast<const T*>(a.regions), static_cast<T*>(a.to),
                      Divider(s.out_w, count), Divider(s.out_h, count), Divider(s.channels, count), count});
  });
}

}  // namespace trireme::cuda
