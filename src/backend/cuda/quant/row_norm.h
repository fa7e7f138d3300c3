// The RMS norm that stands before products of few rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/scalar.h"
#include "backend/cuda/quant/row_products.h"

namespace trireme::cuda {

/// kPack<T> scales of the norm from `at` on.
template <class T>
TRIREME_DEVICE void load_norm_scale(const RowProductArgs& a, int64_t at, float* out) {
  if (!a.is_scale_f32) return load_pack(static_cast<const T*>(a.norm_scale) + at, kPack<T>, out);
  const float* from = static_cast<const float*>(a.norm_scale) + at;
  for (int i = 0; i < kPack<T>; i += kPack<float>) load_pack(from + i, kPack<float>, out + i);
}

/// Writes the rows of x after their RMS norm to `rows` in shared memory, `stride` elements apart, rounded to
/// T. All threads of the block call it. The first kReduceScratchBytes of shared memory are its own.
template <class T, class Lane>
TRIREME_DEVICE void normalise_rows(const Lane& lane, const RowProductArgs& a, T* rows, int64_t stride) {
  float* scratch = lane.template shared<float>();
  const int64_t step = int64_t{lane.threads()} * kPack<T>;
  for (int b = 0; b < a.rows; ++b) {
    const T* from = static_cast<const T*>(a.x) + b * a.k;
    float v[kPack<T>], squares = 0;
    for (int64_t i = int64_t{lane.thread()} * kPack<T>; i < a.k; i += step) {
      load_pack(from + i, kPack<T>, v);
      for (int j = 0; j < kPack<T>; ++j) squares += v[j] * v[j];
    }
    squares = block_reduce(lane, squares, scratch, [](float p, float q) { return p + q; });
    const float inverse = 1.0f / sqrtf(squares / static_cast<float>(a.k) + a.epsilon);
    for (int64_t i = int64_t{lane.thread()} * kPack<T>; i < a.k; i += step) {
      float scale[kPack<T>];
      load_pack(from + i, kPack<T>, v);
      load_norm_scale<T>(a, i, scale);
      for (int j = 0; j < kPack<T>; ++j) v[j] = v[j] * inverse * scale[j];
      store_pack(v, kPack<T>, rows + b * stride + i);
    }
  }
  lane.sync();
}

}  // namespace trireme::cuda
