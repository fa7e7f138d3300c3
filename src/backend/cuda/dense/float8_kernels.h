// Kernels of 8-bit floats by rows, and behind their products. A row's scale is the least power of two that
// keeps it in range, so that codes times scales are exact and every order of steps gives the same bits.
#pragma once

#include "backend/cuda/dense/activation.h"
#include "backend/cuda/dense/float8_codes.h"

namespace trireme::cuda {

/// One block a row, read again from the cache once its scale is known. sizeof(T) + 1 bytes an element.
template <class T>
struct QuantizeFloat8Rows {
  const T* x;
  uint8_t* codes;
  float* scales;
  int64_t rows, n;
  bool e5m2;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    auto* scratch = lane.template shared<uint32_t>();
    const int64_t step = static_cast<int64_t>(lane.threads()) * kPack<T>;
    const int64_t first = static_cast<int64_t>(lane.thread()) * kPack<T>;
    for (int64_t row = lane.block(); row < rows; row += lane.blocks()) {
      const T* from = x + row * n;
      uint32_t most = 0;
      float v[kPack<T>];
      for (int64_t i = first; i < n; i += step) {
        load_part(from, i, n, v);
        for (float e : v) most = LargerBits{}(most, tensor::magnitude_bits(e));
      }
      most = block_reduce(lane, most, scratch, LargerBits{});
      const float scale = tensor::float8_scale(most, Float8Form::of(e5m2));
      const float inverse = tensor::float8_inverse(scale);
      for (int64_t i = first; i < n; i += step) {
        load_part(from, i, n, v);
        // Rows of n % kPack != 0 bytes are not aligned.
        const int64_t count = n % kPack<T> == 0 ? kPack<T> : n - i < kPack<T> ? n - i : kPack<T> - 1;
        store_codes<T>(v, inverse, e5m2, count, codes + row * n + i);
        if (n % kPack<T> != 0 && n - i >= kPack<T>)
          codes[row * n + i + kPack<T> - 1] = float8_byte(v[kPack<T> - 1] * inverse, e5m2);
      }
      if (lane.thread() == 0) scales[row] = scale;
    }
  }
};

/// y = codes times the row's scale. 1 + sizeof(T) bytes an element.
template <class T>
struct Float8Values {
  static constexpr bool kIndependent = true;
  const uint8_t* codes;
  const float* scales;
  T* y;
  int64_t rows, n;
  bool e5m2;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t step = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < rows * n; i += step)
      y[i] = from_float<T>(tensor::float8_value(codes[i], Float8Form::of(e5m2)) * scales[i / n]);
  }
};

/// See ScaledFinishArgs. 4 + sizeof(T) bytes an element, and sizeof(T) for the residual.
template <class T>
struct FinishScaled {
  static constexpr bool kIndependent = true;
  const float *product, *scale_a, *scale_b;
  const T *bias, *residual;
  T* out;
  int64_t m, n;
  ActivationForm act;
  bool act_before_residual;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    // A thread's elements are neighbours of one row.
    const int64_t each = n % kPack<T> == 0 ? kPack<T> : 1, step = lane.blocks() * lane.threads() * each;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * each; at < m * n; at += step) {
      const int64_t row = at / n, column = at % n;
      const float scale = scale_a[row];
      float value[kPack<T>], add[kPack<T>] = {};
      for (int i = 0; i < kPack<T>; i += 4) load_pack(product + at + i, each - i, value + i);
      if (residual != nullptr) load_pack(residual + at, each, add);
      for (int i = 0; i < kPack<T>; ++i) {
        if (i >= each) break;
        float v = value[i] * scale * scale_b[column + i];
        if (bias != nullptr) v += to_float(bias[column + i]);
        v = act_before_residual ? activate(act, v) + add[i] : activate(act, v + add[i]);
        value[i] = v;
      }
      store_pack(value, each, out + at);
    }
  }
};

}  // namespace trireme::cuda
