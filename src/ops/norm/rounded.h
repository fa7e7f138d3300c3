// The further result of norms over rows that rounds the first to 16 bits.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

/// Attribute `rounded` (f16 or bf16): the norm's last result is its first one rounded to that type. Passes
/// write it where a device's kernel is to do the work of a cast; ir::HalfRows says which result it is.
const ir::AttrSpec& rounded_attr();

/// f32 where the attribute is absent. Throws invalid_argument unless it names f16 or bf16.
tensor::DType rounded_type(const ir::Attrs& attrs);

/// The types of all results: those of `plain`, and the rounded one if the attribute is there.
std::vector<tensor::TensorType> with_rounded(std::vector<tensor::TensorType> plain, const ir::Attrs& attrs);

/// CPU kernels of a norm whose first `plain` results they make, each with a pass behind it that rounds.
std::vector<ir::Kernel> rounding(std::vector<ir::Kernel> kernels, size_t plain);

}  // namespace trireme::ops
