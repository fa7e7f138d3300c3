// From a type's name to kernels over it, and the usual grids. For .cu files.
#pragma once

#include "backend/cuda/device/launch.h"
#include "backend/cuda/device/scalar.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// f(T{}) for f32, f16 and bf16. Throws internal for another type: ops refuse it before.
template <class F>
void by_float(tensor::DType dtype, F f) {
  switch (dtype) {
    case tensor::DType::f32: return f(float{});
    case tensor::DType::f16: return f(Half{});
    case tensor::DType::bf16: return f(BFloat16{});
    default: base::fail(base::ErrorCode::internal, "no CUDA kernel over ", tensor::name_of(dtype));
  }
}

/// A thread an item, in loops where the device is filled.
inline Launch flat_launch(tensor::Stream& stream, int64_t items, int threads = 256) {
  return {blocks_for(cuda_stream(stream), (items + threads - 1) / threads), threads};
}

/// A block a row: as many threads as there are 16-byte accesses, whole warps, at most 512.
template <class T>
Launch row_launch(tensor::Stream& stream, int64_t rows, int64_t n) {
  const int64_t wanted = ((n + kPack<T> - 1) / kPack<T> + kWarp - 1) / kWarp * kWarp;
  return {blocks_for(cuda_stream(stream), rows, 32),
          static_cast<int>(std::clamp<int64_t>(wanted, kWarp, 512)), kReduceScratchBytes};
}

}  // namespace trireme::cuda
