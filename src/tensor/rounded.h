// Weights in 16 bits that may never be read as such: what packs them takes the wider ones they come from.
#pragma once

#include "tensor/tensor.h"

namespace trireme::tensor {

/// A tensor of `type` and the extents of `source` that takes addresses and no memory. Reading it ends the
/// process, until fill_rounded(). Absent where `source` is. Throws exhausted where addresses run out.
Tensor rounded_later(const Tensor& source, DType type);
/// What it is the rounding of, filled or not; undefined for all other tensors, and for parts of such.
Tensor source_of(const Tensor& tensor);
/// Gives it memory and the content of `rounded`, once.
void fill_rounded(const Tensor& tensor, const Tensor& rounded);

}  // namespace trireme::tensor
