// How matrix products see their operands: batches by NumPy rules, one-dimensional operands promoted to
// matrices.
#pragma once

#include <string_view>
#include <vector>

#include "ir/schema.h"

namespace trireme::ops {

/// Whether the attribute `name`, as transA, turns an operand.
inline bool is_set(const ir::Attrs& attrs, std::string_view name) { return attrs.get_int(name, 0) != 0; }

/// [..., m, k] times [..., k, n]; offsets are in elements, one entry per batch.
struct MatmulShape {
  int64_t m = 1, n = 1, k = 0;
  std::vector<int64_t> a_offset, b_offset;
  int64_t batches() const { return static_cast<int64_t>(a_offset.size()); }
};

/// Throws invalid_argument when the inner extents differ.
MatmulShape matmul_shape(tensor::Dims a, tensor::Dims b);

/// Type rule of `matmul`: shapes by NumPy, symbolic dimensions kept.
tensor::Shape infer_matmul(const tensor::Shape& a, const tensor::Shape& b);

/// Rows (`from_end` 2) or columns (1) of an operand of a product; 1 for a vector, unknown without a rank.
tensor::Dim lines_of(const tensor::Shape& s, size_t from_end);

/// Throws invalid_argument unless operand i has one element, or one for each of `lines`.
void check_per_line(const ir::NodeView& node, size_t i, const tensor::Dim& lines);

/// 2 m n k flop for every batch, operands and result once.
ir::Cost matmul_cost(const ir::NodeView& node, size_t a, size_t b);

}  // namespace trireme::ops
