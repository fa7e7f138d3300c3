// Kernels over rows: one block a row, which stays in registers or is read once more from the cache. All sums
// are in f32 in an order that the row's length and the block's size fix.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/scalar.h"

namespace trireme::cuda {

struct Plus {
  TRIREME_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  TRIREME_DEVICE float operator()(float a, float b) const { return a > b ? a : b; }
};

/// f(value, index) of this thread's elements of a row.
template <class T, class Lane, class F>
TRIREME_DEVICE void for_row(const Lane& lane, const T* row, int64_t n, F f) {
  if (n % kPack<T> != 0) {  // such rows are not aligned
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) f(to_float(row[i]), i);
    return;
  }
  const int64_t step = static_cast<int64_t>(lane.threads()) * kPack<T>;
  for (int64_t i = static_cast<int64_t>(lane.thread()) * kPack<T>; i < n; i += step) {
    float v[kPack<T>];
    load_pack(row + i, kPack<T>, v);
    for (int j = 0; j < kPack<T>; ++j) f(v[j], i + j);
  }
}

/// out[i] = f(row[i], i).
template <class T, class Lane, class F>
TRIREME_DEVICE void map_row(const Lane& lane, const T* row, T* out, int64_t n, F f) {
  if (n % kPack<T> != 0) {
    for (int64_t i = lane.thread(); i < n; i += lane.threads())
      out[i] = from_float<T>(f(to_float(row[i]), i));
    return;
  }
  const int64_t step = static_cast<int64_t>(lane.threads()) * kPack<T>;
  for (int64_t i = static_cast<int64_t>(lane.thread()) * kPack<T>; i < n; i += step) {
    float v[kPack<T>];
    load_pack(row + i, kPack<T>, v);
    for (int j = 0; j < kPack<T>; ++j) v[j] = f(v[j], i + j);
    store_pack(v, kPack<T>, out + i);
  }
}

/// y = exp(x - max) / sum exp(x - max) of each row [n]. 2 sizeof(T) bytes an element while a row fits the
/// cache. The first row is 16-byte aligned.
template <class T>
struct Softmax {
  const T* x;
  T* y;
  int64_t rows, n;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      float most = -INFINITY;
      for_row(lane, from, n, [&](float v, int64_t) { most = v > most ? v : most; });
      most = block_reduce(lane, most, scratch, Larger{});
      // A row of nothing but -inf has no probabilities: zeros, as a fully masked row of attention.
      const float base = most == -INFINITY ? 0.0f : most;
      float total = 0;
      for_row(lane, from, n, [&](float v, int64_t) { total += expf(v - base); });
      total = block_reduce(lane, total, scratch, Plus{});
      const float scale = total > 0 ? 1.0f / total : 0.0f;
      map_row(lane, from, y + row * n, n, [&](float v, int64_t) { return expf(v - base) * scale; });
    }
  }
};

/// y = (x - mean) inv_std scale + bias; the statistics of each row are kept for the backward pass. Two passes
/// over the row: the variance is of differences from the mean. 2 sizeof(T) bytes an element.
template <class T>
struct LayerNorm {
  const T* x;
  const float *scale, *bias;  // [n]; bias may be null
  T* y;
  float *mean, *inv_std;  // [rows] or null
  int64_t rows, n;
  float epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      float total = 0, squares = 0;
      for_row(lane, from, n, [&](float v, int64_t) { total += v; });
      const float m = block_reduce(lane, total, scratch, Plus{}) / static_cast<float>(n);
      for_row(lane, from, n, [&](float v, int64_t) { squares += (v - m) * (v - m); });
      const float variance = block_reduce(lane, squares, scratch, Plus{}) / static_cast<float>(n);
      const float r = 1.0f / sqrtf(variance + epsilon);
      map_row(lane, from, y + row * n, n, [&](float v, int64_t i) {
        return (v - m) * r * scale[i] + (bias != nullptr ? bias[i] : 0.0f);
      });
      if (lane.thread() == 0 && mean != nullptr) mean[row] = m;
      if (lane.thread() == 0 && inv_std != nullptr) inv_std[row] = r;
    }
  }
};

/// y = x scale / sqrt(mean(x^2) + epsilon) of each row. 2 sizeof(T) bytes an element.
template <class T>
struct RmsNorm {
  const T* x;
  const float* scale;
  T* y;
  float* inv_rms;  // [rows] or null
  int64_t rows, n;
  float epsilon;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    float* scratch = lane.template shared<float>();
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      float squares = 0;
      for_row(lane, x + row * n, n, [&](float v, int64_t) { squares += v * v; });
      const float mean = block_reduce(lane, squares, scratch, Plus{}) / static_cast<float>(n);
      const float r = 1.0f / sqrtf(mean + epsilon);
      map_row(lane, x + row * n, y + row * n, n, [&](float v, int64_t i) { return v * r * scale[i]; });
      if (lane.thread() == 0 && inv_rms != nullptr) inv_rms[row] = r;
    }
  }
};

}  // namespace trireme::cuda
