// Where launchers send their kernels.
#pragma once

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Where a launch goes and what its elements are: f32, f16 or bf16.
struct On {
  tensor::Stream& stream;
  tensor::DType dtype = tensor::DType::f32;
};

}  // namespace trireme::cuda
