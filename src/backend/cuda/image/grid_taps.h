// Which elements a point of a grid reads, and with which weights: the coordinates, padding and interpolation
// of grid_sample.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/image/grid.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Reflects x at the borders until it lies in [low, high]; `slope` changes its sign with every turn.
TRIREME_DEVICE double reflected(double x, double low, double high, double& slope) {
  const double range = high - low;
  if (range <= 0) return low;
  const double distance = x < low ? low - x : x > high ? x - high : -1;
  if (distance < 0) return x;
  const double turns = std::floor(distance / range), rest = distance - turns * range;
  const bool even = turns - 2 * std::floor(turns / 2) == 0;
  if (even) slope = -slope;
  return (x < low) == even ? low + rest : high - rest;
}

/// Keys' cubic convolution with a = -0.75 at distance x below 2, and its derivative.
TRIREME_DEVICE float grid_cubic(float x) {
  constexpr float a = -0.75f;
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}
TRIREME_DEVICE float grid_cubic_slope(float x) {
  constexpr float a = -0.75f;
  const float d = std::fabs(x), sign = x < 0 ? -1.0f : 1.0f;
  if (d <= 1) return sign * (3 * (a + 2) * d - 2 * (a + 3)) * d;
  return sign * ((3 * a * d - 10 * a) * d + 8 * a);
}

/// Taps of one axis: index (-1: reads zero), weight, derivative of the weight by the coordinate in [-1, 1].
template <int kTaps>
struct GridTaps {
  int32_t index[kTaps];
  float weight[kTaps], slope[kTaps];

  /// Positions are computed in f64 and rounded once, so that all devices choose the same elements.
  TRIREME_DEVICE GridTaps(const GridShape& s, float normal, int64_t n) {
    const double extent = static_cast<double>(n), low = s.align_corners ? 0 : -0.5,
                 high = s.align_corners ? extent - 1 : extent - 0.5;
    double x =
        s.align_corners ? (double(normal) + 1) / 2 * (extent - 1) : ((double(normal) + 1) * extent - 1) / 2;
    double by = s.align_corners ? (extent - 1) / 2 : extent / 2;
    if (!(std::fabs(x) < 1e300)) x = -1e9;  // reads padding
    x = static_cast<double>(static_cast<float>(x));
    if (kTaps == 1) x = std::nearbyint(x);
    if (x < low || x > high) {
      if (s.padding == GridPadding::reflection) x = reflected(x, low, high, by);
      if (s.padding == GridPadding::border) {
        x = x < 0 ? 0 : x > extent - 1 ? extent - 1 : x;
        by = 0;
      }
    }
    const double base = std::floor(x) - (kTaps == 4 ? 1 : 0);
    for (int k = 0; k < kTaps; ++k) {
      const double at = kTaps == 1 ? std::trunc(x) : base + k;
      const float away = static_cast<float>(x - at), scale = static_cast<float>(by);
      index[k] = padded(s, at, n, low, high);
      weight[k] = kTaps == 1 ? 1.0f : kTaps == 2 ? 1 - std::fabs(away) : grid_cubic(away);
      slope[k] = scale * (kTaps == 1 ? 0.0f : kTaps == 2 ? (k == 0 ? -1.0f : 1.0f) : grid_cubic_slope(away));
    }
  }

 private:
  static TRIREME_DEVICE int32_t padded(const GridShape& s, double i, int64_t n, double low, double high) {
    double unused = 1;
    if (s.padding == GridPadding::reflection) i = std::trunc(reflected(i, low, high, unused));
    const double last = static_cast<double>(n - 1);
    if (s.padding == GridPadding::zeros && (i < 0 || i > last)) return -1;
    return static_cast<int32_t>(i < 0 ? 0 : i > last ? last : i);
  }
};

/// The taps of a point along all axes; absent ones have one tap of weight 1.
template <int kAxes, int kTaps>
struct GridPoint {
  static constexpr int kAll = kAxes == 1 ? kTaps : kAxes == 2 ? kTaps * kTaps : kTaps * kTaps * kTaps;
  int32_t at[kAll];  // place in a plane, or -1
  float weight[kAll];

  /// With `by` in [0, kAxes): derivatives along that axis in the place of its weights.
  template <class T>
  TRIREME_DEVICE GridPoint(const GridShape& s, const T* coordinates, int by = -1) {
    for (int k = 0; k < kAll; ++k) at[k] = 0, weight[k] = 1;
    int span = kAll;
    for (int d = 0; d < kAxes; ++d) {
      const GridTaps<kTaps> taps(s, to_float(coordinates[kAxes - 1 - d]), s.in[d]);
      span /= kTaps;
      for (int k = 0; k < kAll; ++k) {
        const int tap = k / span % kTaps;
        const bool is_inside = at[k] >= 0 && taps.index[tap] >= 0;
        at[k] = is_inside ? static_cast<int32_t>(at[k] * s.in[d]) + taps.index[tap] : -1;
        weight[k] *= d == by ? taps.slope[tap] : taps.weight[tap];
      }
    }
  }
  template <class T>
  TRIREME_DEVICE float read(const T* plane) const {
    float sum = 0;
    for (int k = 0; k < kAll; ++k) {
      if (at[k] >= 0) sum += weight[k] * to_float(plane[at[k]]);
    }
    return sum;
  }
};

}  // namespace trireme::cuda
