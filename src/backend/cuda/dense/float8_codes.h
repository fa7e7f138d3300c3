// Codes of 8-bit floats, as kernels make and store them.
#pragma once

#include "backend/cuda/reduce/rows.h"
#include "tensor/float8.h"
#ifdef __CUDACC__
#include "backend/cuda/dense/float8.cuh"
#endif

namespace trireme::cuda {

using tensor::Float8Form;

struct LargerBits {
  TRIREME_DEVICE uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

/// Four codes in one word, the first in the low byte.
TRIREME_DEVICE uint32_t float8_word(const float* x, float inverse, bool e5m2) {
#ifdef __CUDACC__
  return float8_pair(x[0] * inverse, x[1] * inverse, e5m2) | float8_pair(x[2] * inverse, x[3] * inverse, e5m2)
                                                                 << 16;
#else
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i)
    word |= static_cast<uint32_t>(tensor::float8_code(x[i] * inverse, Float8Form::of(e5m2))) << 8 * i;
  return word;
#endif
}
TRIREME_DEVICE uint8_t float8_byte(float x, bool e5m2) {
#ifdef __CUDACC__
  return static_cast<uint8_t>(float8_pair(x, 0, e5m2));
#else
  return tensor::float8_code(x, Float8Form::of(e5m2));
#endif
}

/// kPack codes of a row with one scale; `count`: how many are there.
template <class T>
TRIREME_DEVICE void store_codes(const float* x, float inverse, bool e5m2, int64_t count, uint8_t* at) {
  if (count < kPack<T>) {
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < count) at[i] = float8_byte(x[i] * inverse, e5m2);
    }
  } else if constexpr (kPack<T> == 8) {
    struct alignas(8) Words {
      uint32_t low, high;
    };
    *reinterpret_cast<Words*>(at) = {float8_word(x, inverse, e5m2), float8_word(x + 4, inverse, e5m2)};
  } else {
    *reinterpret_cast<uint32_t*>(at) = float8_word(x, inverse, e5m2);
  }
}

/// kPack elements of a row of n from `column` on; zeros behind its end.
template <class T>
TRIREME_DEVICE void load_part(const T* row, int64_t column, int64_t n, float* out) {
  if (n % kPack<T> == 0) return load_pack(row + column, column < n ? kPack<T> : 0, out);
  for (int i = 0; i < kPack<T>; ++i) out[i] = column + i < n ? to_float(row[column + i]) : 0.0f;
}

}  // namespace trireme::cuda
