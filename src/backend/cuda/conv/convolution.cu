// Launchers of the plain convolution and of the finish after a convolution.
#include "backend/cuda/conv/convolution.h"

#include "backend/cuda/conv/convolution_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

PointStrides strides_of(int64_t channels, int64_t points, bool channels_last) {
  return channels_last ? PointStrides{channels * points, 1, channels}
                       : PointStrides{channels * points, points, 1};
}

ConvolutionWalk walk_of(const ConvolutionShape& s) {
  ConvolutionWalk w{.batch = s.batch, .channels = s.channels, .filters = s.filters, .groups = s.groups};
  for (size_t i = 0; i < 3; ++i) {
    w.in[i] = s.in[i];
    w.kernel[i] = s.kernel[i];
    w.out[i] = s.out[i];
    w.stride[i] = s.stride[i];
    w.dilation[i] = s.dilation[i];
    w.pad[i] = s.pad[i];
  }
  w.x = strides_of(s.channels, s.in_points(), s.x_channels_last);
  w.y = strides_of(s.filters, s.out_points(), s.y_channels_last);
  return w;
}

}  // namespace

void convolve(tensor::Stream& stream, const ConvolutionShape& s, const ConvolutionPointers& p) {
  by_float(s.type, [&](auto zero) {
    using T = decltype(zero);
    const auto *x = static_cast<const T*>(p.x), *w = static_cast<const T*>(p.w),
               *y = static_cast<const T*>(p.y);
    auto* result = static_cast<T*>(p.result);
    const ConvolutionWalk walk = walk_of(s);
    switch (s.kind) {
      case ConvolutionKind::forward:
        if (s.y_elements() == 0) return;
        return launch(stream, "convolve", flat_launch(stream, s.y_elements()),
                      ConvolveForward<T>{walk, x, w, result});
      case ConvolutionKind::data:
        if (s.x_elements() == 0) return;
        return launch(stream, "convolve_data", flat_launch(stream, s.x_elements()),
                      ConvolveData<T>{walk, y, w, result});
      case ConvolutionKind::weights:
        if (s.w_elements() == 0) return;
        return launch(stream, "convolve_weights", flat_launch(stream, s.w_elements() * kWarp),
                      ConvolveWeights<T>{walk, x, y, result});
    }
  });
}

void finish_channels(tensor::Stream& stream, tensor::DType type, const ChannelFinishArgs& a) {
  const int64_t n = a.outer * a.channels * a.inner;
  if (n == 0) return;
  by_float(type, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, "finish_channels", flat_launch(stream, (n + kPack<T> - 1) / kPack<T>),
           FinishChannels<T>{static_cast<T*>(a.out),
                             static_cast<const T*>(a.bias),
                             static_cast<const T*>(a.residual),
                             {a.outer, a.channels, a.inner},
                             a.act,
                             a.act_before_residual});
  });
}

}  // namespace trireme::cuda
