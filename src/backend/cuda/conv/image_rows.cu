// Launches im2col with channels last.
#include "backend/cuda/conv/image_rows.h"

#include "backend/cuda/conv/image_row_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

template <int kUnit>
void run(tensor::Stream& stream, const ConvolutionShape& s, int64_t first, int64_t count, const void* x,
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
  kernel.units = Divider(units, count * units);
  kernel.channel_units = Divider(channel_units, units);
  kernel.first = first, kernel.count = count;
  kernel.batch_step = s.channels * s.in_points();
  kernel.channel_step = s.x_channels_last ? 1 : s.in_points();
  kernel.x = static_cast<const float*>(x), kernel.rows = static_cast<float*>(rows);
  launch(stream, "image_rows", flat_launch(stream, count * units), kernel);
}

}  // namespace

void image_rows(tensor::Stream& stream, const ConvolutionShape& s, int64_t first, int64_t count,
                const void* x, void* rows) {
  if (count == 0) return;
  constexpr int kUnit = kPack<float>;
  s.x_channels_last&& s.channels % kUnit == 0 ? run<kUnit>(stream, s, first, count, x, rows)
                                              : run<1>(stream, s, first, count, x, rows);
}

}  // namespace trireme::cuda
