// Random tensors: the distributions and their draws as functions of (seed, element).
#pragma once

#include "base/error.h"

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> random_cpu_kernels(bool is_normal);
std::vector<ir::Kernel> bernoulli_cpu_kernels();
std::vector<ir::Kernel> multinomial_cpu_kernels();

/// Numbers that a dropout takes for each batch row of the tensor of extents `whole`. Rounded up where the
/// elements do not divide into rows, so that the draws of two micro-batches never overlap.
inline int64_t dropout_row_elements(const ir::NodeView& node, const tensor::Dims& whole) {
  const int64_t elements = tensor::element_count(whole);
  const int64_t rows = node.attrs.get_int("rows", whole.empty() ? 1 : whole[0]);
  base::require(rows > 0 || (rows == 0 && elements == 0), "dropout of ", elements, " elements in ", rows,
                " rows");
  return rows == 0 ? 0 : elements / rows + (elements % rows != 0 ? 1 : 0);
}

}  // namespace trireme::ops
