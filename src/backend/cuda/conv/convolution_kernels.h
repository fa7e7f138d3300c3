// The plain convolution: one thread a result element, sums in the order of channels and taps. Slow beside a
// library's; takes any shape.
#pragma once

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/reduce/channels.h"
#include "backend/cuda/conv/convolution.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Strides of one tensor: element (image, channel, point).
struct PointStrides {
  int64_t image, channel, point;
};

/// Extents in plain arrays, which device code can take apart.
struct ConvolutionWalk {
  int64_t batch, channels, filters, groups;
  int64_t in[3], kernel[3], out[3], stride[3], dilation[3], pad[3];
  PointStrides x, y;

  /// The input point that result point `o` meets at tap `k`, or -1.
  TRIREME_DEVICE int64_t input(int64_t o, int64_t k) const {
    int64_t point = 0, scale = 1;
    for (int axis = 2; axis >= 0; --axis) {
      const int64_t at = o % out[axis] * stride[axis] - pad[axis] + k % kernel[axis] * dilation[axis];
      if (at < 0 || at >= in[axis]) return -1;
      point += at * scale;
      scale *= in[axis];
      o /= out[axis];
      k /= kernel[axis];
    }
    return point;
  }
  /// The result point that meets input point `i` at tap `k`, or -1.
  TRIREME_DEVICE int64_t result(int64_t i, int64_t k) const {
    int64_t point = 0, scale = 1;
    for (int axis = 2; axis >= 0; --axis) {
      const int64_t at = i % in[axis] + pad[axis] - k % kernel[axis] * dilation[axis];
      if (at < 0 || at % stride[axis] != 0 || at / stride[axis] >= out[axis]) return -1;
      point += at / stride[axis] * scale;
      scale *= out[axis];
      i /= in[axis];
      k /= kernel[axis];
    }
    return point;
  }
  TRIREME_DEVICE int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  TRIREME_DEVICE int64_t in_points() const { return in[0] * in[1] * in[2]; }
  TRIREME_DEVICE int64_t out_points() const { return out[0] * out[1] * out[2]; }
};

/// y from x and w.
template <class T>
struct ConvolveForward {
  ConvolutionWalk walk;
  const T *x, *w;
  T* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t points = walk.out_points(), all = walk.batch * walk.filters * points;
    const int64_t each = walk.channels / walk.groups, taps = walk.taps(),
                  stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < all; i += stride) {
      const int64_t point = i % points, filter = i / points % walk.filters, image = i / points / walk.filters;
      const int64_t first = filter / (walk.filters / walk.groups) * each;
      float sum = 0;
      for (int64_t k = 0; k < taps; ++k) {
        const int64_t at = walk.input(point, k);
        if (at < 0) continue;
        const T* from = x + image * walk.x.image + first * walk.x.channel + at * walk.x.point;
        for (int64_t c = 0; c < each; ++c)
          sum += to_float(from[c * walk.x.channel]) * to_float(w[(filter * each + c) * taps + k]);
      }
      y[image * walk.y.image + filter * walk.y.channel + point * walk.y.point] = from_float<T>(sum);
    }
  }
};

/// x from y and w: every input point gathers the results that it went into.
template <class T>
struct ConvolveData {
  ConvolutionWalk walk;
  const T *y, *w;
  T* x;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t points = walk.in_points(), all = walk.batch * walk.channels * points, taps = walk.taps();
    const int64_t each = walk.channels / walk.groups, filters = walk.filters / walk.groups;
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < all; i += stride) {
      const int64_t point = i % points, channel = i / points % walk.channels;
      const int64_t image = i / points / walk.channels, first = channel / each * filters;
      float sum = 0;
      for (int64_t k = 0; k < taps; ++k) {
        const int64_t at = walk.result(point, k);
        if (at < 0) continue;
        const T* from = y + image * walk.y.image + first * walk.y.channel + at * walk.y.point;
        for (int64_t f = 0; f < filters; ++f)
          sum += to_float(from[f * walk.y.channel]) *
                 to_float(w[((first + f) * each + channel % each) * taps + k]);
      }
      x[image * walk.x.image + channel * walk.x.channel + point * walk.x.point] = from_float<T>(sum);
    }
  }
};

/// w from x and y: a warp a weight, its lanes take result points in turn.
template <class T>
struct ConvolveWeights {
  ConvolutionWalk walk;
  const T *x, *y;
  T* w;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t points = walk.out_points(), taps = walk.taps(), each = walk.channels / walk.groups;
    const int64_t warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int64_t i = lane.block() * warps + lane.thread() / kWarp; i < walk.filters * each * taps;
         i += lane.blocks() * warps) {
      const int64_t k = i % taps, c = i / taps % each, filter = i / taps / each;
      const int64_t channel = filter / (walk.filters / walk.groups) * each + c;
      float sum = 0;
      for (int64_t p = in_warp; p < walk.batch * points; p += kWarp) {
        const int64_t image = p / points, at = walk.input(p % points, k);
        if (at < 0) continue;
        sum += to_float(x[image * walk.x.image + channel * walk.x.channel + at * walk.x.point]) *
               to_float(y[image * walk.y.image + filter * walk.y.channel + p % points * walk.y.point]);
      }
      sum = warp_sum(lane, sum);
      if (in_warp == 0) w[i] = from_float<T>(sum);
    }
  }
};

/// See ChannelFinishArgs. 2 sizeof(T) bytes an element, with residual 3.
template <class T>
struct FinishChannels {
  T* out;
  const T *bias, *residual;  // either may be null
  ChannelExtents extents;
  ActivationForm act;
  bool act_before_residual;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = extents.outer * extents.channels * extents.inner;
    const int64_t stride = lane.blocks() * lane.threads() * kPack<T>;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * kPack<T>; at < n; at += stride) {
      float v[kPack<T>], more[kPack<T>] = {};
      load_pack(out + at, n - at, v);
      if (residual != nullptr) load_pack(residual + at, n - at, more);
      for_channels(extents, at, kPack<T>, [&](int i, int64_t c) {
        if (bias != nullptr) v[i] += to_float(bias[c]);
        v[i] = act_before_residual ? activate(act, v[i]) + more[i] : activate(act, v[i] + more[i]);
      });
      store_pack(v, n - at, out + at);
    }
  }
};

}  // namespace trireme::cuda
