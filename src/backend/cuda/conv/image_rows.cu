// Launches im2col with channels last.
#include "backend/cuda/conv/image_rows.h"

#include "backend/cuda/conv/image_row_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

template <int kUnit>
void copy_rows(tensor::Stream& stream, const ConvolutionShape& s, PointRange points, const void* x,
               void* rows) {
  constexpr int64_t kAny = INT64_MAX;
  ImageRows<kUnit> kernel{};
  int64_t step = s.x_channels_last ? s.channels : 1;
  for (size_t d = 0; d < 3; ++d) {
    const size_t i = 2 - d;
    kernel.axes[d] = {Divider(s.kernel[i], kAny),
                      Divider(s.out[i], kAny),
                      s.in[i],
                      s.stride[i],
                      s.dilation[i],
                      s.pad[i],
                      step};
    step *= s.in[i];
  }
  const int64_t channel_units = s.channels / kUnit, units = s.taps() * channel_units;
  kernel.units = Divider(units, points.count * units);
  kernel.channel_units = Divider(channel_units, units);
  kernel.first = points.first, kernel.count = points.count;
  kernel.batch_step = s.channels * s.in_points();
  kernel.channel_step = s.x_channels_last ? 1 : s.in_points();
  kernel.x = static_cast<const float*>(x), kernel.rows = static_cast<float*>(rows);
  launch(stream, "image_rows", flat_launch(stream, points.count * units), kernel);
}

}  // namespace

void image_rows(tensor::Stream& stream, const ConvolutionShape& s, PointRange points, const void* x,
                void* rows) {
  if (points.count == 0) return;
  constexpr int kUnit = kPack<float>;
  const bool in_packs = s.x_channels_last && s.channels % kUnit == 0;
  in_packs ? copy_rows<kUnit>(stream, s, points, x, rows) : copy_rows<1>(stream, s, points, x, rows);
}

}  // namespace trireme::cuda
