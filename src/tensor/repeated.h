// Large tensors that repeat one block: they take addresses, not memory. For measuring networks that are
// larger than the host's memory, or than what is worth drawing.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace trireme::tensor {

/// What a tensor repeats, and with which element of it it begins.
struct Repetition {
  Tensor block;  ///< undefined: the tensor has memory of its own
  int64_t first = 0;
};

/// `first` is a multiple of it, and so are a block's elements: whole pages of memory in any type.
inline constexpr int64_t kRepeatedUnit = 4096;

/// Elements first, first + 1, ... of `block`, again and again, as a tensor of extents `dims`. Writing to it
/// is allowed and takes memory. Throws invalid_argument for a block or beginning that is no multiple of
/// kRepeatedUnit, exhausted where addresses run out.
Tensor repeated(const Tensor& block, int64_t first, Dims dims);

/// How repeated() made the tensor; an undefined block for all others, and for parts of such.
Repetition repetition_of(const Tensor& tensor);

}  // namespace trireme::tensor
