// Matrices side by side that may never be read as such: what packs the whole reads the parts.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace trireme::tensor {

/// `parts`, equal but for their extent along `axis`, side by side, as a tensor that takes addresses and no
/// memory. Reading it ends the process, until fill_joined(). Absent where a part is. Throws exhausted where
/// addresses run out.
Tensor joined_later(std::vector<Tensor> parts, size_t axis);
bool is_joined(const Tensor& tensor);
/// Its content in new memory, filled or not; undefined for all other tensors, and for parts of such.
Tensor joined_now(const Tensor& tensor);
/// Gives it memory and content, once.
void fill_joined(const Tensor& tensor);

}  // namespace trireme::tensor
