// How far one tensor is from another.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace trireme::tensor {

/// Largest |a - b| / max(|b|, 1 % of max |b|) over all elements. 0 for equal tensors (NaN equals NaN),
/// infinity where only one is NaN or where types or extents differ.
double relative_error(const Tensor& actual, const Tensor& expected);

/// Largest |a - b| over all elements, with the same rules for NaN and mismatches. Of integers, the difference
/// is taken in integers, so that one in 2^60 is seen.
double absolute_error(const Tensor& actual, const Tensor& expected);

/// Why an error is infinite: "is f32[2,3], expected f32[2,4]", "is nan at element 7, expected 1"; "" if both
/// errors are numbers.
std::string mismatch(const Tensor& actual, const Tensor& expected);

}  // namespace trireme::tensor
