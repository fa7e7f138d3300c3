// Tensors of which only type and extents count: for programs that are looked at, priced and placed, and get
// their weights later or never.
#pragma once

#include <memory>
#include <span>

#include "tensor/tensor.h"

namespace trireme::tensor {

/// Constants up to this size keep their content where larger ones are absent: passes and kernels read
/// scalars, small tables, scales and zero points while programs are made. Who reads a larger one asks
/// is_absent() first.
inline constexpr int64_t kSmallBytes = 64 << 10;

/// A tensor that takes addresses and no memory. Reading its content ends the process. `held`: what was made
/// of its content, for those who know it, kept as long as the tensor. Throws exhausted where addresses run
/// out.
Tensor absent(DType type, Dims dims, std::shared_ptr<const void> held = nullptr);
/// That; null for other tensors.
std::shared_ptr<const void> held_by(const Tensor& tensor);
/// Whether a tensor, or what it is a part of, was made so.
bool is_absent(const Tensor& tensor);
bool has_absent(std::span<const Tensor> tensors);
/// The tensor itself if it is small, else an absent one of its type and extents.
Tensor without_content(const Tensor& tensor);

}  // namespace trireme::tensor
