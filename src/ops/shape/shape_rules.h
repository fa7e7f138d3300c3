// Type rules of the shape family: what an operator does to extents, with symbolic dimensions kept where they
// can be.
#pragma once

#include <optional>

#include "ir/schema.h"

namespace trireme::ops {

using DimList = std::vector<tensor::Dim>;

/// The value of operand i as integers if it is present and known.
std::optional<std::vector<int64_t>> known_ints(const ir::NodeView& node, size_t i);

/// Number of values in operand i (a 1-D tensor), if its extent is a number.
std::optional<int64_t> length_of(const ir::NodeView& node, size_t i);

/// dim * factor, dim + amount, dim / divisor: numbers stay numbers, symbols survive neutral operations.
tensor::Dim times(const tensor::Dim& dim, int64_t factor);
tensor::Dim plus(const tensor::Dim& dim, int64_t amount);

/// Result types of one value: x's type under another shape.
inline std::vector<tensor::TensorType> like(const tensor::TensorType& x, tensor::Shape shape) {
  return {tensor::TensorType{x.dtype, std::move(shape)}};
}

/// Axes in [0, rank), sorted, without repetition. Throws invalid_argument.
std::vector<size_t> normal_axes(const std::vector<int64_t>& axes, size_t rank);

/// A slice of one dimension by the rules of Slice: first index, number of steps.
struct SliceRange {
  int64_t start, count;
};
SliceRange slice_range(int64_t start, int64_t end, int64_t step, int64_t extent);

}  // namespace trireme::ops
