// Tensors of which only type and extents count: for programs that are looked at, priced and placed, not run.
#pragma once

#include "tensor/tensor.h"

namespace trireme::tensor {

/// A tensor that takes addresses and no memory. Reading its content ends the process. Throws exhausted where
/// addresses run out.
Tensor absent(DType type, Dims dims);

}  // namespace trireme::tensor
