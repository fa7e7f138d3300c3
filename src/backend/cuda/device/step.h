// A few neighbouring elements as floats, read or written by one access.
#pragma once

#include "backend/cuda/device/scalar.h"

/// Before a loop over arrays that live in registers: a register has no index at run time.
#ifdef __CUDACC__
#define TRIREME_UNROLL _Pragma("unroll")
#else
#define TRIREME_UNROLL
#endif

namespace trireme::cuda {

/// kCount elements, at most 16 bytes.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Step {
  T item[kCount];
};

/// `at` is aligned to the whole step.
template <int kCount, class T>
TRIREME_DEVICE void load_step(const T* at, float* out) {
  const Step<T, kCount> p = *reinterpret_cast<const Step<T, kCount>*>(at);
  for (int i = 0; i < kCount; ++i) out[i] = to_float(p.item[i]);
}
template <int kCount, class T>
TRIREME_DEVICE void store_step(const float* in, T* at) {
  Step<T, kCount> p;
  for (int i = 0; i < kCount; ++i) p.item[i] = from_float<T>(in[i]);
  *reinterpret_cast<Step<T, kCount>*>(at) = p;
}

}  // namespace trireme::cuda
