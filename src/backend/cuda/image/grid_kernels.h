// Kernels of samples at the points of a grid: the taps of a point once for a few channels.
#pragma once

#include <cstdint>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/image/grid_taps.h"

namespace trireme::cuda {

inline constexpr int kGridChannels = 4;  ///< of a thread

/// sizeof(T) (points read + channels x points written) bytes while neighbouring points share elements of x in
/// the cache; 2 taps flop an element.
template <class T, int kAxes, int kTaps>
struct GridSample {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  GridShape shape;
  const T *x, *grid;
  T* y;
  Divider points, groups;  // groups of channels
  int64_t in_points, count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t rest = i;
      const int64_t p = points.step(rest), first = groups.step(rest) * kGridChannels;
      const GridPoint<kAxes, kTaps> taps(shape, grid + (rest * shape.points + p) * kAxes);
      for (int64_t c = first; c < first + kGridChannels && c < shape.channels; ++c) {
        const int64_t plane = rest * shape.channels + c;
        y[plane * shape.points + p] = from_float<T>(taps.read(x + plane * in_points));
      }
    }
  }
};

/// One coordinate of one point: the sum over the channels in their order.
template <class T, int kAxes, int kTaps>
struct GridGradGrid {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  GridShape shape;
  const T *dy, *x, *grid;
  T* dgrid;
  Divider points;
  int64_t in_points, count;  // coordinates

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      const int64_t point = i / kAxes;
      int64_t image = point;
      const int64_t p = points.step(image);
      const GridPoint<kAxes, kTaps> taps(shape, grid + point * kAxes,
                                         kAxes - 1 - static_cast<int>(i % kAxes));
      float sum = 0;
      for (int64_t c = 0; c < shape.channels; ++c) {
        const int64_t plane = image * shape.channels + c;
        sum += to_float(dy[plane * shape.points + p]) * taps.read(x + plane * in_points);
      }
      dgrid[i] = from_float<T>(sum);
    }
  }
};

/// A key for each tap of each point: the element it reads, counted over the batch, and the tap's number; its
/// weight beside it. Taps that read nothing sort last.
template <class T, int kAxes, int kTaps>
struct GridKeys {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  GridShape shape;
  const T* grid;
  uint64_t* keys;
  float* weights;
  Divider points;
  int64_t in_points, count, padded;  // points of the batch; keys

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    using Point = GridPoint<kAxes, kTaps>;
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i * Point::kAll < padded; i += stride) {
      int64_t image = i;
      points.step(image);
      if (i >= count) {
        for (int64_t k = i * Point::kAll; k < (i + 1) * Point::kAll && k < padded; ++k)
          keys[k] = ~uint64_t{0};
        continue;
      }
      const Point taps(shape, grid + i * kAxes);
      for (int k = 0; k < Point::kAll; ++k) {
        const int64_t number = i * Point::kAll + k;
        keys[number] = taps.at[k] < 0 ? ~uint64_t{0}
                                      : static_cast<uint64_t>(image * in_points + taps.at[k]) << 32 |
                                            static_cast<uint64_t>(number);
        weights[number] = taps.weight[k];
      }
    }
  }
};

/// dx of the elements that taps read, each summed over its run of keys; the others are zero already.
template <class T>
struct GridSumRuns {
  static constexpr bool kIndependent = true;
  GridShape shape;
  const uint64_t* keys;
  const float* weights;
  const T* dy;
  T* dx;
  Divider entries;
  int64_t in_points, taps, count;  // taps of a point; entries x channels

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      int64_t channel = i;
      const int64_t start = entries.step(channel);
      const uint64_t place = keys[start] >> 32;
      if (place == 0xffffffffu || (start > 0 && keys[start - 1] >> 32 == place)) continue;
      const int64_t image = static_cast<int64_t>(place) / in_points;
      const int64_t plane = image * shape.channels + channel;
      float sum = 0;
      for (int64_t j = start; j < entries.divisor() && keys[j] >> 32 == place; ++j) {
        const auto number = static_cast<int64_t>(keys[j] & 0xffffffffu);
        sum += weights[number] * to_float(dy[plane * shape.points + number / taps - image * shape.points]);
      }
      dx[plane * in_points + static_cast<int64_t>(place) - image * in_points] = from_float<T>(sum);
    }
  }
};

/// A coordinate a thread.
template <class T>
struct AffineGridPoints {
  static constexpr bool kIndependent = true;
  AffineGrid shape;
  const T* theta;
  T* y;
  int64_t points, count;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < count; i += stride) {
      const int64_t point = i / shape.axes, row = i % shape.axes;
      const T* of = theta + (point / points * shape.axes + row) * (shape.axes + 1);
      int64_t rest = point % points;
      double sum = 0;
      for (int a = 0; a < shape.axes; ++a) {  // last axis first
        const int64_t n = shape.out[shape.axes - 1 - a], at = rest % n;
        rest /= n;
        const double normal = !shape.align_corners ? -1.0 + (2.0 * double(at) + 1) / double(n)
                              : n == 1             ? -1.0
                                                   : -1.0 + 2.0 * double(at) / double(n - 1);
        sum += double(to_float(of[a])) * normal;
      }
      y[i] = from_float<T>(static_cast<float>(sum + double(to_float(of[shape.axes]))));
    }
  }
};

}  // namespace trireme::cuda
