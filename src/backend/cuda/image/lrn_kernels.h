// Kernels of normalisation over neighbouring channels: a thread an element, neighbours from the cache.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/image/lrn.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {

/// Where an element lies, and the sums over channels that look at it or that it looks at.
struct LrnWalk {
  LrnShape shape;
  Divider points, channels;
  int64_t count;

  TRIREME_DEVICE int64_t channel(int64_t i) const {
    points.step(i);
    return channels.step(i);
  }
  /// Sum of term(element) over channels [c - before, c + after] of the element at i of channel c.
  template <class Term>
  TRIREME_DEVICE float sum(int64_t i, int64_t before, int64_t after, Term term) const {
    const int64_t c = channel(i);
    const int64_t first = c < before ? -c : -before;
    const int64_t last = c + after >= shape.channels ? shape.channels - 1 - c : after;
    float total = 0;
    for (int64_t k = first; k <= last; ++k) total += term(i + k * shape.points);
    return total;
  }
  template <class T>
  TRIREME_DEVICE float base(const T* x, int64_t i) const {
    const float squares = sum(i, (shape.size - 1) / 2, shape.size / 2, [&](int64_t at) {
      const float v = to_float(x[at]);
      return v * v;
    });
    return shape.bias + shape.alpha / static_cast<float>(shape.size) * squares;
  }
};

/// 2 sizeof(T) bytes an element; the window's other channels come from the cache.
template <class T>
struct Lrn {
  static constexpr bool kIndependent = true;
  LrnWalk walk;
  const T* x;
  T* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride)
      y[i] = from_float<T>(to_float(x[i]) * std::pow(walk.base(x, i), -walk.shape.beta));
  }
};

/// Of each element dy base^-beta and dy x base^(-beta - 1), in f32.
template <class T>
struct LrnTerms {
  static constexpr bool kIndependent = true;
  LrnWalk walk;
  const T *dy, *x;
  float *direct, *shared;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const float base = walk.base(x, i);
      direct[i] = to_float(dy[i]) * std::pow(base, -walk.shape.beta);
      shared[i] = direct[i] / base * to_float(x[i]);
    }
  }
};

/// Channel j looks at [j - before, j + after]: c lies in the windows of [c - after, c + before].
template <class T>
struct LrnGrad {
  static constexpr bool kIndependent = true;
  LrnWalk walk;
  const T* x;
  const float *direct, *shared;
  T* dx;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const LrnShape& s = walk.shape;
    const int64_t stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < walk.count; i += stride) {
      const float sum = walk.sum(i, s.size / 2, (s.size - 1) / 2, [&](int64_t at) { return shared[at]; });
      const float factor = 2 * s.alpha * s.beta / static_cast<float>(s.size);
      dx[i] = from_float<T>(direct[i] - factor * to_float(x[i]) * sum);
    }
  }
};

}  // namespace trireme::cuda
