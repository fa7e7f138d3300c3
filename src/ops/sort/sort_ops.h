// Ops that order or select by value: what schema and kernel files share.
#pragma once

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> top_k_cpu_kernels();
std::vector<ir::Kernel> unique_cpu_kernels();
std::vector<ir::Kernel> non_max_suppression_cpu_kernels();

/// What unique returns, over the slices of x along an axis (or its elements): by position in the result.
struct UniqueResult {
  std::vector<int64_t> first;    ///< first occurrence
  std::vector<int64_t> inverse;  ///< for each slice of x, its position in the result
  std::vector<int64_t> counts;
};
UniqueResult unique_of(const tensor::Tensor& x, const ir::Attrs& attrs);

/// Boxes kept by non_max_suppression: triples (batch, class, box).
std::vector<int64_t> selected_boxes(const ir::NodeView& node);

}  // namespace trireme::ops
