// Element types of kernels: f32, f16 and bf16 in memory, f32 in registers, 16 bytes at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/device/lane.h"
#ifdef __CUDACC__
#include "backend/cuda/device/half.cuh"
#else
#include "tensor/half.h"
#endif

namespace trireme::cuda {

#ifdef __CUDACC__
using Half = __half;
using BFloat16 = __nv_bfloat16;
#else
using tensor::BFloat16;
using tensor::Half;
#endif

template <class T>
TRIREME_DEVICE float to_float(T x) {
  return static_cast<float>(x);
}
/// Round to nearest even.
template <class T>
TRIREME_DEVICE T from_float(float x) {
  return T(x);
}

/// Elements of one 16-byte access.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// 16 bytes of memory.
template <class T>
struct alignas(16) Pack {
  T item[kPack<T>];
};

/// kPack elements as floats, read or written as one access where `whole`, else the first `count` of them one
/// by one. `at` of whole packs is 16-byte aligned.
template <class T>
TRIREME_DEVICE void load_pack(const T* at, int64_t count, float* out) {
  if (count >= kPack<T>) {
    const Pack<T> p = *reinterpret_cast<const Pack<T>*>(at);
    for (int i = 0; i < kPack<T>; ++i) out[i] = to_float(p.item[i]);
  } else {
    for (int i = 0; i < kPack<T>; ++i) out[i] = i < count ? to_float(at[i]) : 0.0f;
  }
}
template <class T>
TRIREME_DEVICE void store_pack(const float* in, int64_t count, T* at) {
  if (count >= kPack<T>) {
    Pack<T> p;
    for (int i = 0; i < kPack<T>; ++i) p.item[i] = from_float<T>(in[i]);
    *reinterpret_cast<Pack<T>*>(at) = p;
  } else {
    for (int i = 0; i < kPack<T>; ++i) {
      if (i < count) at[i] = from_float<T>(in[i]);
    }
  }
}

}  // namespace trireme::cuda
