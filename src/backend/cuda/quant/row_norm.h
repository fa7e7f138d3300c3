// The RMS norm that stands before products of few rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/step.h"
#include "backend/cuda/quant/row_products.h"

namespace trireme::cuda {

/// kPack<T> scales of the norm from `at` on.
template <class T>
TRIREME_DEVICE void load_norm_scale(const RowProductArgs& a, int64_t at, float* out) {
  if (!a.is_scale_f32) return load_pack(static_cast<const T*>(a.norm_scale) + at, kPack<T>, out);
  const float* from = static_cast<const float*>(a.norm_scale) + at;
  for (int i = 0; i < kPack<T>; i += kPack<float>) load_pack(from + i, kPack<float>, out + i);
}

/// 1 / sqrt(mean of squares + epsilon) of each row of x, the same bits in every thread: partial sums of the
/// threads, a butterfly in each warp, then the warps in their order. All rows are read at once. All threads
/// of the block call it; `scratch` is kReduceScratchBytes of shared memory.
template <class T, class Lane>
TRIREME_DEVICE void inverse_lengths(const Lane& lane, const RowProductArgs& a, float* scratch,
                                    float (&inverse)[kMostProductRows]) {
  const int64_t step = int64_t{lane.threads()} * kPack<T>;
  float squares[kMostProductRows] = {};
  for (int64_t i = int64_t{lane.thread()} * kPack<T>; i < a.k; i += step) {
    TRIREME_UNROLL
    for (int b = 0; b < kMostProductRows; ++b) {
      float v[kPack<T>];
      if (b >= a.rows) continue;
      load_pack(static_cast<const T*>(a.x) + b * a.k + i, kPack<T>, v);
      for (int j = 0; j < kPack<T>; ++j) squares[b] += v[j] * v[j];
    }
  }
  TRIREME_UNROLL
  for (int b = 0; b < kMostProductRows; ++b) {
    if (b >= a.rows) continue;
    for (int mask = kWarp / 2; mask > 0; mask /= 2) squares[b] += lane.shuffle_xor(squares[b], mask);
    if (lane.thread() % kWarp == 0) scratch[lane.thread() / kWarp * kMostProductRows + b] = squares[b];
  }
  lane.sync();
  TRIREME_UNROLL
  for (int b = 0; b < kMostProductRows; ++b) {
    float total = 0;
    for (int w = 0; w < lane.threads() / kWarp && b < a.rows; ++w) total += scratch[w * kMostProductRows + b];
    inverse[b] = 1.0f / sqrtf(total / static_cast<float>(a.k) + a.epsilon);
  }
}

/// Writes the rows of x after their RMS norm to `rows` in shared memory, `stride` elements apart, rounded to
/// T. All threads of the block call it. The first kReduceScratchBytes of shared memory are its own.
template <class T, class Lane>
TRIREME_DEVICE void normalise_rows(const Lane& lane, const RowProductArgs& a, T* rows, int64_t stride) {
  float inverse[kMostProductRows];
  inverse_lengths<T>(lane, a, lane.template shared<float>(), inverse);
  const int64_t step = int64_t{lane.threads()} * kPack<T>;
  for (int64_t i = int64_t{lane.thread()} * kPack<T>; i < a.k; i += step) {
    float scale[kPack<T>], v[kPack<T>];
    load_norm_scale<T>(a, i, scale);
    TRIREME_UNROLL
    for (int b = 0; b < kMostProductRows; ++b) {
      if (b >= a.rows) continue;
      load_pack(static_cast<const T*>(a.x) + b * a.k + i, kPack<T>, v);
      for (int j = 0; j < kPack<T>; ++j) v[j] = v[j] * inverse[b] * scale[j];
      store_pack(v, kPack<T>, rows + b * stride + i);
    }
  }
  lane.sync();
}

}  // namespace trireme::cuda
