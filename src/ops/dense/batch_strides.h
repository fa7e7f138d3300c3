// Batches of a matrix product as two nested strides, which is what the batched CPU product takes.
#pragma once

#include <optional>

#include "ops/dense/matmul_shape.h"

namespace trireme::ops {

/// Batch i * inner + j starts at i * outer_stride + j * inner_stride of each operand.
struct BatchStrides {
  int64_t outer, inner;
  int64_t a_outer, a_inner, b_outer, b_inner;
};

/// Finds such strides, or nothing (broadcasts over more than two runs of axes).
std::optional<BatchStrides> batch_strides(const MatmulShape& shape);

}  // namespace trireme::ops
