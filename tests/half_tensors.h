// Random tensors of the three types that device kernels take, for tests.
#pragma once

#include "tests/run_kernels.h"

namespace trireme::tests {

/// The f32 tensor rounded to `type`: f32, f16 or bf16.
inline Tensor rounded_to(tensor::DType type, const Tensor& x) {
  if (type == tensor::DType::f32) return x;
  Tensor out = Tensor::empty(type, x.dims());
  for (size_t i = 0; i < static_cast<size_t>(x.elements()); ++i) {
    if (type == tensor::DType::f16) {
      out.mutable_data<tensor::Half>()[i] = tensor::Half(x.data<float>()[i]);
    } else {
      out.mutable_data<tensor::BFloat16>()[i] = tensor::BFloat16(x.data<float>()[i]);
    }
  }
  return out;
}

/// How far results of `type` may lie apart that round once or twice.
inline double half_tolerance(tensor::DType type) {
  return type == tensor::DType::f32 ? 2e-5 : type == tensor::DType::f16 ? 5e-3 : 4e-2;
}

}  // namespace trireme::tests
