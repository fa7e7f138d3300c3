// From the types of a norm's operands to its kernels. For .cu files.
#pragma once

#include <type_traits>

#include "backend/cuda/norm/norm.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {

/// f(T{}, S{}) for x of T, scale and bias of S: T or f32.
template <class F>
void by_norm_types(const NormTypes& types, F f) {
  by_float(types.x, [&](auto x) {
    using T = decltype(x);
    if constexpr (std::is_same_v<T, float>) {
      f(x, float{});
    } else {
      types.scale == tensor::DType::f32 ? f(x, float{}) : f(x, T(0.0f));
    }
  });
}

}  // namespace trireme::cuda
