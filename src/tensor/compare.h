// How far one tensor is from another.
#pragma once

#include "tensor/tensor.h"

namespace trireme::tensor {

/// Largest |a - b| / max(|b|, 1 % of max |b|) over all elements. 0 for equal tensors (NaN equals NaN),
/// infinity where only one is NaN or where types or extents differ.
double relative_error(const Tensor& actual, const Tensor& expected);

/// Largest |a - b| over all elements, with the same rules for NaN and mismatches.
double absolute_error(const Tensor& actual, const Tensor& expected);

}  // namespace trireme::tensor
